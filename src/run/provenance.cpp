#include "run/provenance.h"

#include <fmt/chrono.h>

#include <chrono>

#include "base/file.h"
#include "base/json_text.h"
#include "base/process.h"
#include "data/byte_input.h"
#include "data/foreign_tokens.h"
#include "data/token_file.h"
#include "inspect/model_card.h"
#include "io/checksum.h"
#include "kernels/kernels.h"

namespace onefold {
namespace {

constexpr const char* kRun = "run.json";
constexpr const char* kCard = "README.md";

std::string utc_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kHashedWhole = int64_t{4} << 30;

// Read, not mapped: a mapped file would stay in this process's memory.
std::string hash_of(const std::string& path, int64_t bytes) {
  InputFile file(path);
  std::vector<std::byte> block(kBlockBytes);
  Checksum checksum;
  const int64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  const int64_t taken = bytes > kHashedWhole ? kHashedWhole / kBlockBytes : blocks;
  for (int64_t i = 0; i < taken; ++i) {
    if (taken < blocks) file.seek(i * (bytes - kBlockBytes) / (taken - 1));
    checksum.add(std::span(block).first(file.read(block)));
  }
  return checksum.text();
}

Json describe_data(const Config& config, const RunPlan& plan) {
  Json files = Json::array();
  const auto list = [&](const std::vector<std::string>& paths, const char* use) {
    for (const std::string& path : expanded({.paths = paths}).paths) {
      Json file = {{"use", use}};
      file.update(describe_file(path, config.data.train.format));
      files.push_back(file);
    }
  };
  list(config.data.train.paths, "train");
  list(config.data.validation, "validation");
  return {
      {"train_tokens", plan.data.train_tokens}, {"validation_tokens", plan.data.validation_tokens},
      {"documents", plan.data.documents},       {"sequences", plan.data.train->sequences().count()},
      {"fingerprint", plan.data.fingerprint},   {"files", files}};
}

Json describe_tokenizer(const RunPlan& plan) {
  if (!plan.data.tokenizer) return nullptr;
  return {{"hash", fmt::format("{:016x}", plan.data.tokenizer->hash())},
          {"vocab_size", plan.data.tokenizer->vocab_size()}};
}

Json new_part(const Config& config, const RunPlan& plan) {
  const std::string commit = build_commit();
  return {{"started", utc_now()},
          {"ended", nullptr},
          {"onefold", ONEFOLD_VERSION},
          {"commit", commit.empty() ? Json() : Json(commit)},
          {"machine",
           {{"cpu", cpu_name()},
            {"simd", cpu_simd_name()},
            {"cores", available_cores()},
            {"memory_bytes", total_memory_bytes()}}},
          {"ranks", plan.rank.ranks},
          {"transport", plan.transport},
          {"stage", config.zero.stage}};
}

// The parts that are on record. A damaged record does not keep a run from going on.
Json earlier_parts(const std::string& path) {
  try {
    const Json run = path_exists(path) ? read_json(path) : Json();
    if (run.is_object() && run.contains("parts") && run["parts"].is_array()) return run["parts"];
  } catch (const UserError&) {
  }
  return Json::array();
}

// A README that someone else has written stays.
bool may_write_card(const std::string& path) {
  return !path_exists(path) || read_file(path).find(kCardMark) != std::string::npos;
}

}  // namespace

Json common_ground(const Config& config, const RunPlan& plan) {
  return {{"program", {{"onefold", ONEFOLD_VERSION}, {"commit", build_commit()}}},
          {"configuration", config.effective()},
          {"model", plan.model.to_json()},
          {"steps", plan.steps},
          {"resumes", plan.resumes},
          {"data",
           {{"train_tokens", plan.data.train_tokens},
            {"validation_tokens", plan.data.validation_tokens},
            {"fingerprint", plan.data.fingerprint},
            {"xxh3", plan.data.hash}}},
          {"tokenizer", describe_tokenizer(plan)}};
}

Json describe_file(const std::string& path, DataFormat format) {
  if (is_read_once(path))
    return {{"path", path}, {"bytes", nullptr}, {"xxh3", nullptr}, {"hash_of", "none"}};
  const int64_t bytes = file_bytes(path);
  Json file = {{"path", path},
               {"bytes", bytes},
               {"xxh3", hash_of(path, bytes)},
               {"hash_of", bytes > kHashedWhole ? "samples" : "all"}};
  if (format == DataFormat::kTokens) {
    if (const std::optional<ForeignTokens> foreign = open_foreign_tokens(path)) {
      file["tokens"] = foreign->tokens;
      return file;
    }
    const TokenFile tokens(path);
    file["tokens"] = tokens.info().tokens;
    file["documents"] = tokens.info().documents;
  }
  return file;
}

Provenance::Provenance(const Config& config, const RunPlan& plan) {
  run_ = {{"format", "onefold-run"},
          {"version", 1},
          {"parameters", plan.model.parameter_count()},
          {"total_steps", plan.steps},
          {"steps", 0},
          {"model", plan.model.to_json()},
          {"tokenizer", describe_tokenizer(plan)},
          {"data", describe_data(config, plan)},
          {"parts", Json::array({new_part(config, plan)})},
          {"configuration", config.effective()}};
}

void Provenance::begin(const RunFolder& folder) {
  folder_ = folder;
  // A new run's folder has no checkpoints, and what an older run has left there is not its past.
  Json parts =
      folder.checkpoints().list().empty() ? Json::array() : earlier_parts(folder.file(kRun));
  parts.push_back(run_["parts"].back());
  run_["parts"] = std::move(parts);
  write();
}

void Provenance::finish(const Json& summary) {
  Json& part = run_["parts"].back();
  part["ended"] = utc_now();
  for (const char* key : {"resumed_from_step", "steps", "interrupted", "loss", "validation_loss",
                          "seconds", "tokens", "tokens_per_second", "peak_rss_bytes"})
    part[key] = summary.at(key);
  run_["steps"] = summary.at("steps");
  write();
}

void Provenance::write() const {
  write_file(folder_->file(kRun), json_text(run_) + "\n");
  if (may_write_card(folder_->file(kCard)))
    write_file(folder_->file(kCard), model_card(run_, folder_->path()));
}

}  // namespace onefold
