#include "cli/description.h"

#include "base/text.h"

namespace onefold::cli {
namespace {

// CLI11 writes the choices into the name of the type: "TEXT:{threads,mpi}".
void read_type(const std::string& type, OptionDescription& option) {
  const size_t colon = type.find(':');
  option.value = type.substr(0, colon);
  const size_t begin = type.find('{', colon == std::string::npos ? type.size() : colon);
  const size_t end = type.find('}', begin == std::string::npos ? type.size() : begin);
  if (end != std::string::npos)
    option.choices = split(std::string_view(type).substr(begin + 1, end - begin - 1), ',');
}

OptionDescription described(const CLI::Option& option) {
  OptionDescription result;
  result.positional = option.get_lnames().empty() && option.get_snames().empty();
  result.name = result.positional             ? option.get_single_name()
                : option.get_lnames().empty() ? ""
                                              : option.get_lnames().front();
  if (!option.get_snames().empty()) result.brief = option.get_snames().front();
  result.text = option.get_description();
  if (result.positional || option.get_items_expected_max() > 0)
    read_type(option.get_type_name(), result);
  return result;
}

void add_described(const CLI::App& app, const std::string& path, const std::string& name,
                   std::vector<CommandDescription>& list) {
  CommandDescription command{path, name, app.get_description(), app.get_footer(), {}, {}};
  for (const CLI::Option* option : app.get_options()) command.options.push_back(described(*option));
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* one : below)
    command.commands.emplace_back(one->get_name(), one->get_description());
  list.push_back(std::move(command));
  for (const CLI::App* one : below)
    add_described(*one, path + "/" + one->get_name(), name + " " + one->get_name(), list);
}

}  // namespace

std::vector<CommandDescription> describe_commands(const CLI::App& app) {
  std::vector<CommandDescription> list;
  add_described(app, "", app.get_name(), list);
  return list;
}

}  // namespace onefold::cli
