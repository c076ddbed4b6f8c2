#include "comm/launcher.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>

namespace onefold {
namespace {

// Parses a number at the beginning of the text and removes it.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// The first of these variables that is a number.
std::optional<int> number_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    std::string_view text = value;
    const std::optional<int> number = take_number(text);
    if (number && text.empty()) return number;
  }
  return std::nullopt;
}

// Whether srun has started this process as part of a step. In a batch script, which is not a rank,
// Slurm sets the variables of the whole job, which do not describe what mpirun starts there.
bool in_slurm_step() { return std::getenv("SLURM_STEP_NUM_TASKS") != nullptr; }

std::optional<int> slurm_local_ranks() {
  const int node = number_of({"SLURM_NODEID"}).value_or(0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
    if (const char* value = std::getenv(name))
      if (const std::optional<int> count = slurm_count(value, node)) return count;
  return number_of({"SLURM_NTASKS_PER_NODE"});
}

}  // namespace

std::optional<int> slurm_count(std::string_view text, int node) {
  int nodes = 0;
  do {
    const std::optional<int> count = take_number(text);
    if (!count) return std::nullopt;
    int times = 1;
    if (take(text, "(x")) {
      const std::optional<int> given = take_number(text);
      if (!given || !take(text, ")")) return std::nullopt;
      times = *given;
    }
    if (times > node - nodes) return count;
    nodes += times;
  } while (take(text, ","));
  return std::nullopt;
}

// mpirun may run inside a Slurm job, whose variables its ranks then inherit: those of mpirun take
// precedence.
Launched read_launcher() {
  Launched launched;
  launched.rank = number_of({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
  launched.ranks = number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  launched.local_rank = number_of({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"});
  launched.local_ranks = number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
  if (!in_slurm_step()) return launched;
  if (!launched.rank) launched.rank = number_of({"SLURM_PROCID"});
  if (!launched.ranks) launched.ranks = number_of({"SLURM_STEP_NUM_TASKS"});
  if (!launched.local_rank) launched.local_rank = number_of({"SLURM_LOCALID"});
  if (!launched.local_ranks) launched.local_ranks = slurm_local_ranks();
  return launched;
}

}  // namespace onefold
