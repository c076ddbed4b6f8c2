#include "io/checkpoint_folder.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace onefold {
namespace {

constexpr std::string_view kPrefix = "step-", kUnderWay = ".writing-", kAbandoned = "abandoned-",
                           kReplaced = "replaced-";

std::string name_of(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

}  // namespace

int64_t step_of_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  return parsed.ec == std::errc() && parsed.ptr == end ? step : -1;
}

std::vector<CheckpointFolder::Entry> CheckpointFolder::list() const {
  if (is_broken_link(path_))
    user_error("{} is a link to what is not there; is the disk with the checkpoints mounted?",
               path_);
  std::vector<Entry> entries;
  for (const Files::Entry& entry : list_folder(path_)) {
    const int64_t step = step_of_name(entry.name);
    const std::string path = path_ + "/" + entry.name;
    if (step >= 0 && (path_exists(path + "/" + kManifest) || is_broken_link(path)))
      entries.push_back({step, path});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.step > b.step; });
  return entries;
}

std::string CheckpointFolder::temporary(int64_t step) const {
  return path_ + "/" + std::string(kUnderWay) + name_of(step);
}

std::string CheckpointFolder::begin(int64_t step) const {
  make_folders(temporary(step));
  return temporary(step);
}

std::string CheckpointFolder::commit(const Manifest& manifest) const {
  const std::string from = temporary(manifest.step), to = path_ + "/" + name_of(manifest.step);
  // The last file: with its name, those of the others are on disk too.
  write_file(from + "/" + kManifest, json_text(manifest.to_json()) + "\n");
  replace_folder(from, to);
  flush_folder(path_);
  return to;
}

void CheckpointFolder::discard(int64_t step) const { (void)try_remove_path(temporary(step)); }

void CheckpointFolder::discard_all() const {
  std::vector<Files::Entry> entries;
  (void)files().list(path_, entries);
  for (const Files::Entry& entry : entries)
    if (entry.name.starts_with(kUnderWay)) (void)try_remove_path(path_ + "/" + entry.name);
}

std::vector<std::string> CheckpointFolder::prune(int64_t newest, int64_t last,
                                                 int64_t every) const {
  std::vector<std::string> problems;
  std::vector<Entry> entries;
  try {
    entries = list();
  } catch (const UserError& error) {
    return {error.what()};
  }
  std::erase_if(entries, [&](const Entry& entry) { return entry.step > newest; });
  for (size_t i = static_cast<size_t>(std::max<int64_t>(1, last)); i < entries.size(); ++i) {
    if (every > 0 && entries[i].step % every == 0) continue;
    // Under another name first: a removal that is cut short must not leave half a checkpoint.
    const std::string dying = temporary(entries[i].step);
    std::string problem = try_remove_path(dying);
    if (problem.empty()) {
      const std::error_code error = files().rename(entries[i].path, dying);
      problem = error ? fmt::format("cannot rename {}: {}", entries[i].path, error.message())
                      : try_remove_path(dying);
    }
    if (!problem.empty()) problems.push_back(problem);
  }
  return problems;
}

// Beside where it was, so that a link that says how to go from here stays right.
std::string CheckpointFolder::set_aside(const Entry& entry, std::string_view prefix) const {
  std::string to = fmt::format("{}/{}{}", path_, prefix, name_of(entry.step));
  for (int number = 2; path_exists(to) || is_broken_link(to); ++number)
    to = fmt::format("{}/{}{}.{}", path_, prefix, name_of(entry.step), number);
  rename_path(entry.path, to);
  return to;
}

std::vector<std::string> CheckpointFolder::abandon_after(
    int64_t step, const std::vector<Entry>& passed_over) const {
  std::vector<std::string> moved;
  for (const Entry& entry : list()) {
    const auto same = [&](const Entry& other) { return is_same_file(other.path, entry.path); };
    if (entry.step > step && std::none_of(passed_over.begin(), passed_over.end(), same))
      moved.push_back(set_aside(entry, kAbandoned));
  }
  return moved;
}

void CheckpointFolder::replace_all() const {
  for (const Entry& entry : list()) set_aside(entry, kReplaced);
}

std::vector<std::string> CheckpointFolder::drop_replaced() const {
  std::vector<std::string> problems;
  std::vector<Files::Entry> entries;
  (void)files().list(path_, entries);
  for (const Files::Entry& entry : entries) {
    if (!entry.name.starts_with(kReplaced)) continue;
    if (std::string problem = try_remove_path(path_ + "/" + entry.name); !problem.empty())
      problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace onefold
