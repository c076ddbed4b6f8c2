#include "inspect/model_card.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "base/json_text.h"
#include "base/text.h"

namespace onefold {
namespace {

std::string row(std::string_view name, std::string_view value) {
  return fmt::format("| {} | {} |\n", name, value);
}

std::string table(std::string_view rows) { return fmt::format("| | |\n| --- | --- |\n{}\n", rows); }

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// A name that Markdown would read as something else stays what it is.
std::string code(const std::string& text) { return "`" + text + "`"; }

std::string model_section(const Json& run) {
  std::string rows = row("parameters", format_count(run["parameters"]));
  for (const auto& [key, value] : run["model"].items()) rows += row(key, text_of(value));
  const Json& tokenizer = run["tokenizer"];
  if (tokenizer.is_object())
    rows += row("tokenizer", fmt::format("{} tokens, hash {}", tokenizer["vocab_size"].dump(),
                                         text_of(tokenizer["hash"])));
  return "## Model\n\n" + table(rows);
}

std::string data_section(const Json& data) {
  std::string text = fmt::format(
      "## Data\n\n{} training tokens in {} sequences; {} validation tokens.\n\n"
      "| file | use | size | XXH3 |\n| --- | --- | --- | --- |\n",
      format_count(data["train_tokens"]), data["sequences"].dump(),
      format_count(data["validation_tokens"]));
  for (const Json& file : data["files"])
    text +=
        fmt::format("| {} | {} | {} | {}{} |\n", code(text_of(file["path"])), text_of(file["use"]),
                    file["bytes"].is_null() ? "a pipe" : format_bytes(file["bytes"]),
                    file["xxh3"].is_null() ? "" : text_of(file["xxh3"]),
                    file["hash_of"] == "samples" ? " (of samples)" : "");
  return text + "\n";
}

std::string training_section(const Json& run) {
  const Json& config = run["configuration"];
  std::string rows =
      row("steps", fmt::format("{} of {}", run["steps"].dump(), run["total_steps"].dump()));
  rows += row("sequences in a batch", text_of(config["train_batch_size"]));
  rows += row("tokens in a sequence", text_of(config["data"]["sequence_length"]));
  rows += row("optimizer", fmt::format("{} {}", text_of(config["optimizer"]["type"]),
                                       code(config["optimizer"]["params"].dump())));
  rows += row("schedule", fmt::format("{} {}", text_of(config["scheduler"]["type"]),
                                      code(config["scheduler"].value("params", Json()).dump())));
  rows += row("gradient clipping", text_of(config["gradient_clipping"]));
  rows += row("seed", text_of(config["run"]["seed"]));
  return "## Training\n\n" + table(rows);
}

std::string loss_text(const Json& loss) {
  return loss.is_number() ? fmt::format("{:.4f}", loss.get<double>()) : "";
}

// One line for each part: begun, ended, and how.
std::string history_section(const Json& parts) {
  std::string text =
      "## History\n\n| began | ended | steps | loss | validation loss | ranks | machine | onefold "
      "|\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const Json& part : parts) {
    const bool ended = part["ended"].is_string();
    const std::string version =
        part["commit"].is_string()
            ? fmt::format("{} ({})", text_of(part["onefold"]), text_of(part["commit"]))
            : text_of(part["onefold"]);
    text += fmt::format("| {} | {}{} | {} | {} | {} | {} | {}, {} cores | {} |\n",
                        text_of(part["started"]), ended ? text_of(part["ended"]) : "",
                        ended && part["interrupted"] == true ? ", stopped" : "",
                        ended ? part["steps"].dump() : "", loss_text(part.value("loss", Json())),
                        loss_text(part.value("validation_loss", Json())), part["ranks"].dump(),
                        text_of(part["machine"]["cpu"]), part["machine"]["cores"].dump(), version);
  }
  return text + "\n";
}

std::string result_line(const Json& parts) {
  const Json& last = parts.back();
  if (!last["ended"].is_string())
    return "Training is under way, or was ended before it could write its results.\n\n";
  std::string text = fmt::format("Training loss {}", loss_text(last["loss"]));
  if (last["validation_loss"].is_number()) {
    const double loss = last["validation_loss"];
    text += fmt::format(", validation loss {:.4f} (perplexity {:.2f} for each token)", loss,
                        std::exp(loss));
  }
  return text + fmt::format(", after {} steps.\n\n", last["steps"].dump());
}

}  // namespace

std::string model_card(const Json& run, const std::string& folder) {
  std::filesystem::path path(folder);
  if (path.filename().empty()) path = path.parent_path();
  std::string card = fmt::format(
      "---\nlibrary_name: onefold\npipeline_tag: text-generation\n---\n{}\n\n# {}\n\n"
      "A language model of {} parameters, trained with Onefold. {}",
      kCardMark, path.filename().string(), format_count(run["parameters"]),
      result_line(run["parts"]));
  card += fmt::format(
      "```\nonefold generate {0} --prompt '...'\nonefold export {0} DIR    # for Hugging Face "
      "transformers\nonefold train {0}/config.json --resume    # goes on\n```\n\n",
      folder);
  card += model_section(run) + data_section(run["data"]) + training_section(run);
  card += history_section(run["parts"]);
  return card +
         fmt::format("## Configuration\n\n```json\n{}\n```\n", json_text(run["configuration"]));
}

}  // namespace onefold
