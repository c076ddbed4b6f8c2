// run.json: where a run's weights come from. Configuration, code, machine, data with hashes, and
// for each part of the run (a resumed run has several) when it ran and how it ended. Written when a
// part begins and again when it ends, whole each time; README.md, the model card, with it.
#pragma once

#include <optional>
#include <string>

#include "run/plan.h"
#include "run/run_folder.h"

namespace onefold {

// The commit that the program was built from, as far as its build could tell; "" if it could not.
const char* build_commit();

// What all ranks of a run must have alike: program, configuration, model, data and tokenizer.
Json common_ground(const Config& config, const RunPlan& plan);

// A data file as run.json lists it. Files of more than 4 GiB are hashed by samples, spread evenly,
// so that a run does not begin with minutes of reading; "hash_of" says which.
Json describe_file(const std::string& path, DataFormat format);

class Provenance {
 public:
  // Gathers what is to be said of a part, hashes of the data among it, and writes nothing.
  Provenance(const Config& config, const RunPlan& plan);

  // Begins the part. Earlier parts of a run that goes on in its own folder are kept.
  void begin(const RunFolder& folder);
  // Ends it: `summary` is Training's.
  void finish(const Json& summary);

 private:
  void write() const;

  std::optional<RunFolder> folder_;
  Json run_;
};

}  // namespace onefold
