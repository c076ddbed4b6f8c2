#include "io/manifest.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "io/checksum.h"
#include "io/half.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

constexpr const char* kFormat = "onefold-checkpoint";
constexpr int64_t kVersion = 2, kFlatVersion = 1;
constexpr int64_t kMostElems = int64_t{1} << 46;  // far beyond any model, far inside int64

// A name from a file becomes part of a path: it must stay in the folder.
Json list_of(JsonObject& in, std::string_view key) {
  Json list = in.require<Json>(key);
  if (!list.is_array()) in.fail(key, fmt::format("is {}, not a list", json_kind(list)));
  return list;
}

Json object_of(JsonObject& in, std::string_view key) {
  return JsonObject(in.require<Json>(key), in.path(key)).value();
}

// A count from a file: -1 for what is none, or is beyond any model.
int64_t count_of(const Json& json) {
  if (!json.is_number_integer()) return -1;
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{kMostElems}) return -1;
  const auto count = json.get<int64_t>();
  return count < 0 || count > kMostElems ? -1 : count;
}

CheckpointFile read_file_entry(JsonObject in) {
  CheckpointFile file{.name = in.require<std::string>("name"),
                      .bytes = in.require<int64_t>("bytes"),
                      .checksum = in.require<std::string>("xxh3")};
  if (!is_plain_file_name(file.name)) in.fail("name", "must be the name of a file in this folder");
  if (file.bytes < 1) in.fail("bytes", "must be at least 1");
  in.finish();
  return file;
}

std::vector<int64_t> read_shape(JsonObject& in) {
  std::vector<int64_t> shape;
  int64_t elems = 1;
  for (const Json& json : list_of(in, "shape")) {
    const int64_t size = count_of(json);
    // Two factors of at most 2^46 overflow: the product is looked at before it is taken.
    if (size < 0 || (size > 0 && elems > kMostElems / size))
      in.fail("shape", fmt::format("has the size {}, which no tensor has", brief_json(json)));
    elems *= size;
    shape.push_back(size);
  }
  if (shape.size() > 2)
    in.fail("shape", fmt::format("has {} sizes, and no tensor more than two", shape.size()));
  return shape;
}

// Items of a piece: `count` numbers, the first a file's.
std::vector<int64_t> read_counts(const JsonObject& in, const Json& piece, size_t count,
                                 const char* format, size_t files) {
  if (!piece.is_array() || piece.size() != count)
    in.fail("pieces", fmt::format("must be a list of {}", format));
  std::vector<int64_t> counts;
  for (const Json& json : piece) counts.push_back(count_of(json));
  if (counts[0] < 0 || static_cast<size_t>(counts[0]) >= files)
    in.fail("pieces", fmt::format("names file {} of {}", brief_json(piece[0]), files));
  if (std::find(counts.begin(), counts.end(), -1) != counts.end())
    in.fail("pieces", fmt::format("has {}, which is none of {}", brief_json(piece), format));
  return counts;
}

// What a file has of a tensor is a list of boxes without holes.
void check_offsets(const JsonObject& in, const std::vector<CheckpointPiece>& pieces) {
  std::vector<const CheckpointPiece*> sorted;
  for (const CheckpointPiece& piece : pieces) sorted.push_back(&piece);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->file, a->offset) < std::pair(b->file, b->offset);
  });
  int file = -1;
  int64_t end = 0;
  for (const CheckpointPiece* piece : sorted) {
    if (piece->file != file) end = 0;
    file = piece->file;
    if (piece->offset != end)
      in.fail("pieces", fmt::format("do not follow each other in file {}: one begins at element "
                                    "{}, and those before it end at {}",
                                    file, piece->offset, end));
    end += piece->box.elems();
  }
}

void check_pieces(const JsonObject& in, const std::vector<CheckpointPiece>& pieces, int64_t rows,
                  int64_t cols) {
  std::vector<Box> boxes;
  for (const CheckpointPiece& piece : pieces) boxes.push_back(piece.box);
  switch (cover_of(boxes, rows, cols)) {
    case Cover::exact:
      return check_offsets(in, pieces);
    case Cover::outside:
      in.fail("pieces", fmt::format("have a box that is not inside {} x {}", rows, cols));
    case Cover::overlapping:
      in.fail("pieces", "overlap");
    case Cover::gaps:
      in.fail("pieces", fmt::format("do not cover all of {} x {}", rows, cols));
  }
}

std::vector<CheckpointPiece> read_pieces(JsonObject& in, int64_t rows, int64_t cols, size_t files) {
  std::vector<CheckpointPiece> pieces;
  for (const Json& json : list_of(in, "pieces")) {
    const std::vector<int64_t> n =
        read_counts(in, json, 6, "[file, offset, row, col, rows, cols]", files);
    pieces.push_back({static_cast<int>(n[0]), n[1], {n[2], n[3], n[4], n[5]}});
  }
  check_pieces(in, pieces, rows, cols);
  return pieces;
}

CheckpointState read_state(JsonObject in, const CheckpointTensor& tensor, size_t files) {
  const int64_t tensor_elems = tensor.elems();
  CheckpointState state{.name = in.require<std::string>("name"),
                        .dtype = in.require<std::string>("dtype"),
                        .elems = count_of(in.require<Json>("elements")),
                        .block = count_of(in.require<Json>("block"))};
  if (safetensors_dtype_bytes(state.dtype) == 0)
    in.fail("dtype", fmt::format("is \"{}\", which no safetensors file has", state.dtype));
  if (state.block < 0) in.fail("block", "must be a number of elements, at least 1; or 0");
  const bool own = state.block == CheckpointState::kOwn;
  if (own && state.elems < 1) in.fail("elements", "must be at least 1");
  const int64_t expected =
      own ? state.elems : tensor_elems / state.block + (tensor_elems % state.block != 0);
  if (state.elems != expected)
    in.fail("elements",
            fmt::format("must be {}: one for each {} of {}", expected, state.block, tensor_elems));
  if (state.block != 1)
    state.pieces = read_pieces(in, 1, state.elems, files);
  else if (in.has("pieces"))
    state.pieces = read_pieces(in, tensor.rows(), tensor.cols(), files);
  in.finish();
  return state;
}

void check_states(const JsonObject& in, const std::vector<CheckpointState>& states) {
  std::set<std::string> names;
  for (const CheckpointState& state : states) names.insert(state.name);
  if (names.size() != states.size() || states.empty() || states[0].name != kParameters)
    in.fail("states", fmt::format("must have distinct names, \"{}\" first", kParameters));
  if (states[0].block != 1) in.fail("states", fmt::format("has {} in blocks", kParameters));
  if (!states[0].pieces.empty())
    in.fail("states", fmt::format("has {} with pieces of their own", kParameters));
}

CheckpointTensor read_tensor(JsonObject in, size_t files) {
  CheckpointTensor tensor{.shape = read_shape(in), .states = {}, .pieces = {}};
  const Json states = list_of(in, "states");
  for (size_t i = 0; i < states.size(); ++i)
    tensor.states.push_back(
        read_state({states[i], fmt::format("{}[{}]", in.path("states"), i)}, tensor, files));
  check_states(in, tensor.states);
  tensor.pieces = read_pieces(in, tensor.rows(), tensor.cols(), files);
  in.finish();
  return tensor;
}

// Version 1: states are names, all F32, and pieces are ranges [file, first, elems] that follow each
// other.
CheckpointTensor read_flat_tensor(JsonObject in, size_t files) {
  CheckpointTensor tensor{.shape = read_shape(in), .states = {}, .pieces = {}};
  const int64_t elems = tensor.elems();
  for (const std::string& name : in.require<std::vector<std::string>>("states"))
    tensor.states.push_back({.name = name, .elems = elems});
  check_states(in, tensor.states);
  int64_t covered = 0;
  for (const Json& json : list_of(in, "pieces")) {
    const std::vector<int64_t> n = read_counts(in, json, 3, "[file, first, elems]", files);
    if (n[1] != covered || n[2] < 1 || n[2] > elems - covered)
      in.fail("pieces", "do not cover the tensor from end to end");
    covered += n[2];
    tensor.add_range(static_cast<int>(n[0]), n[1], n[2]);
  }
  check_pieces(in, tensor.pieces, tensor.rows(), tensor.cols());
  in.finish();
  return tensor;
}

Json pieces_json(const std::vector<CheckpointPiece>& pieces) {
  Json list = Json::array();
  for (const auto& [file, offset, box] : pieces)
    list.push_back({file, offset, box.row, box.col, box.rows, box.cols});
  return list;
}

Json tensor_json(const CheckpointTensor& tensor) {
  Json states = Json::array();
  for (const CheckpointState& state : tensor.states) {
    Json item = {{"name", state.name},
                 {"dtype", state.dtype},
                 {"elements", state.elems},
                 {"block", state.block}};
    if (!state.pieces.empty()) item["pieces"] = pieces_json(state.pieces);
    states.push_back(std::move(item));
  }
  return {{"shape", tensor.shape}, {"states", states}, {"pieces", pieces_json(tensor.pieces)}};
}

}  // namespace

std::string CheckpointState::obstacle() const {
  if (is_coded() || (is_model_dtype(dtype) && block <= 1)) return "";
  return fmt::format(
      "{} is {}{}, and this Onefold reads F32, F16, BF16 and U8 with a value for each element",
      name, dtype, block == 1 ? "" : fmt::format(" with a value for each {} elements", block));
}

const CheckpointState* CheckpointTensor::state(const std::string& name) const {
  for (const CheckpointState& state : states)
    if (state.name == name) return &state;
  return nullptr;
}

void CheckpointTensor::add_range(int file, int64_t first, int64_t elems) {
  add_boxes(file, boxes_of_range(rows(), cols(), first, elems));
  for (CheckpointState& state : states)
    if (state.block == CheckpointState::kOwn && first == 0)
      state.pieces.push_back({file, 0, {0, 0, 1, state.elems}});
    else if (state.block > 1)
      state.pieces.push_back(
          {file, 0, {0, first / state.block, 1, (elems + state.block - 1) / state.block}});
}

void CheckpointTensor::add_boxes(int file, const std::vector<Box>& boxes) {
  int64_t offset = 0;
  for (const Box& box : boxes) {
    pieces.push_back({file, offset, box});
    offset += box.elems();
  }
}

void CheckpointTensor::add_own(const std::string& state, int file, const std::vector<Box>& boxes) {
  auto found = std::find_if(states.begin(), states.end(),
                            [&](const CheckpointState& one) { return one.name == state; });
  if (found == states.end()) found = states.insert(states.end(), {.name = state, .elems = elems()});
  int64_t offset = 0;
  for (const Box& box : boxes) {
    found->pieces.push_back({file, offset, box});
    offset += box.elems();
  }
}

std::string manifest_checksum(Json manifest) {
  manifest.erase("xxh3");
  const std::string text = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
  return checksum_of(std::as_bytes(std::span(text)));
}

Json Manifest::to_json() const {
  Json file_list = Json::array(), tensor_table = Json::object();
  for (const CheckpointFile& file : files)
    file_list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.checksum}});
  // Not operator[]: the object is searched linearly, and the names are distinct.
  for (const auto& [name, tensor] : tensors)
    tensor_table.get_ref<Json::object_t&>().emplace_back(name, tensor_json(tensor));
  Json json = {{"format", kFormat}, {"version", kVersion}, {"step", step},
               {"run", run},        {"files", file_list},  {"tensors", tensor_table}};
  json["xxh3"] = manifest_checksum(json);
  return json;
}

Manifest Manifest::from_json(const Json& json, const std::string& source) {
  if (!json.is_object()) user_error("{} is not a checkpoint's manifest", source);
  try {
    JsonObject root(json, "");
    if (root.get<std::string>("format", "") != kFormat)
      root.fail("format", fmt::format("must be \"{}\"", kFormat));
    const auto version = root.require<int64_t>("version");
    if (version != kVersion && version != kFlatVersion)
      root.fail("version", fmt::format("is {}; this Onefold reads {} and {}", version, kFlatVersion,
                                       kVersion));
    if (root.require<std::string>("xxh3") != manifest_checksum(json))
      user_error("it does not have the checksum that it gives itself: it is damaged");
    Manifest manifest;
    manifest.step = root.require<int64_t>("step");
    if (manifest.step < 0) root.fail("step", "must be at least 0");
    manifest.run = object_of(root, "run");
    const Json files = list_of(root, "files"), tensors = object_of(root, "tensors");
    for (size_t i = 0; i < files.size(); ++i)
      manifest.files.push_back(read_file_entry({files[i], fmt::format("files[{}]", i)}));
    const auto read = version == kVersion ? read_tensor : read_flat_tensor;
    for (const auto& [name, tensor] : tensors.items())
      manifest.tensors[name] = read({tensor, "tensors." + name}, manifest.files.size());
    root.finish();
    return manifest;
  } catch (const UserError& error) {
    user_error("{}: {}", source, error.what());
  } catch (const Json::exception& error) {
    user_error("{}: {}", source, json_reason(error.what()));
  }
}

}  // namespace onefold
