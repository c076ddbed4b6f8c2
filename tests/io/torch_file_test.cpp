// Weights as PyTorch saves them (tests/golden/make_torch_goldens.py): tensors are read, and
// whatever is not a tensor is refused, not run.
#include "io/torch_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "data/scratch.h"
#include "error_text.h"
#include "io/half.h"
#include "io/hf_folder.h"
#include "io/torch_pickle.h"

namespace onefold {
namespace {

std::string golden(const std::string& name) {
  return std::string(ONEFOLD_GOLDEN_DIR) + "/torch/" + name;
}

std::vector<double> values(const TorchFile& file, const std::string& name) {
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.name != name) continue;
    std::vector<double> result(static_cast<size_t>(entry.elems()));
    to_f64(entry.dtype, file.bytes(entry), result);
    file.release(entry);
    return result;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

std::vector<double> counted(int first, int last, double scale) {
  std::vector<double> result;
  for (int i = first; i < last; ++i) result.push_back(i * scale);
  return result;
}

TEST(TorchFile, HoldsTheTensorsOfAStateDict) {
  const TorchFile file(golden("state.bin"));
  EXPECT_EQ(file.entries().size(), 11u);
  EXPECT_EQ(file.entries()[0].name, "f32");
  EXPECT_EQ(file.entries()[0].shape, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(values(file, "f32"), counted(0, 24, 1.0 / 8));
  const std::vector<double> thirds = values(file, "f64");
  for (size_t i = 0; i < thirds.size(); ++i) EXPECT_EQ(thirds[i], static_cast<double>(i) / 8 / 3);
  EXPECT_EQ(values(file, "f16"), counted(12, 24, 1.0 / 8));
  EXPECT_EQ(values(file, "bf16"), counted(12, 24, 1.0 / 8));
  EXPECT_EQ(values(file, "i64"), (std::vector<double>{1, -2, 3}));
  EXPECT_EQ(values(file, "bool"), (std::vector<double>{1, 0}));
  EXPECT_EQ(values(file, "scalar"), (std::vector<double>{0.5}));
  EXPECT_EQ(values(file, "none"), std::vector<double>{});
  EXPECT_EQ(values(file, "slice"), counted(12, 24, 1.0 / 8));
  EXPECT_EQ(values(file, "parameter"), (std::vector<double>{1.5, -2.5}));
  EXPECT_EQ(values(file, "one"), (std::vector<double>{1, 1, 1}));
}

TEST(TorchFile, DictionariesWithinHaveTheirNamesJoined) {
  const TorchFile file(golden("nested.bin"));
  ASSERT_EQ(file.entries().size(), 1u);
  EXPECT_EQ(values(file, "model.weight"), (std::vector<double>{1, 2}));
}

TEST(TorchFile, RefusesWhatIsNotATensor) {
  EXPECT_ERROR(TorchFile(golden("program.bin")), "holds __builtin__.print", "safetensors");
  EXPECT_ERROR(TorchFile(golden("module.bin")), "torch.nn.modules.linear.Linear");
  EXPECT_ERROR(TorchFile(golden("transposed.bin")), "tensor t is a view", "contiguous");
  EXPECT_ERROR(TorchFile(golden("legacy.bin")), "not an archive of torch.save");
}

// Each instruction of pickles by itself, before an end: those that no tensor needs are named.
TEST(TorchFile, KnowsNoInstructionThatNoTensorNeeds) {
  const std::string needed = "(.N}])tXKMJGQRbsuaeqrhjc\x80\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95";
  int refused = 0;
  for (int code = 0; code < 256; ++code) {
    if (needed.find(static_cast<char>(code)) != std::string::npos) continue;
    const std::string program = {'\x80', '\x02', '}', static_cast<char>(code), '.'};
    EXPECT_ERROR(read_torch_pickle(program, "x.bin"), fmt::format("instruction 0x{:02x}", code));
    ++refused;
  }
  EXPECT_EQ(refused, 256 - 35);
}

// GLOBAL with a name, REDUCE with a tuple: what would run a program in Python.
TEST(TorchFile, CallsNothing) {
  for (const char* name : {"os\nsystem", "builtins\neval", "torch._utils\n_rebuild_tensor_v3",
                           "torch\nload", "collections\nOrderedDict2", "torch\nFloatStorage "}) {
    const std::string program =
        "\x80\x02"
        "c" +
        std::string(name) + "\n(X\x01\0\0\0x" + "tR.";
    EXPECT_ERROR(read_torch_pickle(program, "x.bin"), "and not tensors alone");
  }
  EXPECT_ERROR(read_torch_pickle("\x80\x02"
                                 "ccollections\nOrderedDict\n(NtR.",
                                 "x.bin"),
               "no tensor");
  EXPECT_ERROR(read_torch_pickle("\x80\x02"
                                 "ctorch\nFloatStorage\n)R.",
                                 "x.bin"),
               "no tensor");
}

TEST(TorchFile, ADictionaryThatHoldsItselfEnds) {
  const std::string program = std::string(
      "\x80\x02}q\0X\x01\0\0\0x"
      "h\0s.",
      15);
  EXPECT_ERROR(read_torch_pickle(program, "x.bin"), "nested more than");
}

// A few bytes recall a text of any length: they must not be as many copies of it.
TEST(TorchFile, WhatIsRecalledManyTimesIsHeldOnce) {
  constexpr uint32_t kLength = 1 << 20;
  std::string program = "\x80\x02X";
  program.append(reinterpret_cast<const char*>(&kLength), sizeof(kLength));
  program += std::string(kLength, 'x') + std::string("q\0", 2);
  for (int i = 0; i < 100000; ++i) program += std::string("h\0", 2);  // 100 GB of copies
  EXPECT_ERROR(read_torch_pickle(program + ".", "x.bin"), "no dictionary");
}

// A dictionary of one long name and one tensor, each recalled in two bytes.
TEST(TorchFile, NamesTogetherAreBounded) {
  const auto text = [](const std::string& letters) {
    const auto length = static_cast<uint32_t>(letters.size());
    return "X" + std::string(reinterpret_cast<const char*>(&length), 4) + letters;
  };
  const auto program = [&](int times) {
    std::string made = "\x80\x02}(" + text(std::string(4000, 'n')) + "q\x01";
    made += "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage");
    made += "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\x01tQK" + '\0' + "))tRq\x02";
    for (int i = 1; i < times; ++i) made += "h\x01h\x02";
    return made + "u.";
  };
  EXPECT_EQ(read_torch_pickle(program(1), "x.bin").at(0).name, std::string(4000, 'n'));
  EXPECT_EQ(read_torch_pickle(program(1000), "x.bin").size(), 1000u);
  EXPECT_ERROR(read_torch_pickle(program(20000), "x.bin"), "more values than a model has");
}

TEST(TorchFile, AFolderMayHaveItsWeightsInOne) {
  const ScratchFolder folder;
  folder.write("pytorch_model.bin", read_file(golden("state.bin")));
  EXPECT_TRUE(TensorFiles::in_folder(folder.path("")));
  const TensorFiles tensors = TensorFiles::open_hf_folder(folder.path(""));
  std::vector<float> three(3);
  tensors.read("f64", 1, three);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(three[i], static_cast<float>(static_cast<double>(i + 1) / 8 / 3));
  EXPECT_ERROR(tensors.read("i64", 0, three), "tensor i64 is I64");
}

TEST(TorchFile, OrInShardsWithAnIndex) {
  const ScratchFolder folder;
  folder.write("a.bin", read_file(golden("nested.bin")));
  folder.write("pytorch_model.bin.index.json",
               R"({"metadata": {}, "weight_map": {"model.weight": "a.bin"}})");
  EXPECT_TRUE(TensorFiles::in_folder(folder.path("")));
  const TensorFiles tensors = TensorFiles::open_hf_folder(folder.path(""));
  std::vector<float> two(2);
  tensors.read("model.weight", 0, two);
  EXPECT_EQ(two, (std::vector<float>{1, 2}));
}

std::string little(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value & 0xFF);
  return text;
}

// As torch.save lays them out, but that members are not aligned. Without sums: as it writes them
// with torch.serialization.set_crc32_options(False).
std::string archive(const std::vector<std::pair<std::string, std::string>>& members, bool sums) {
  std::string all, directory;
  for (const auto& [name, content] : members) {
    const auto* const bytes = reinterpret_cast<const Bytef*>(content.data());
    const uint64_t crc = sums ? ::crc32_z(0, bytes, content.size()) : 0;
    const std::string sizes = little(crc, 4) + little(content.size(), 4) +
                              little(content.size(), 4) + little(name.size(), 2) + little(0, 2);
    directory += "PK\x01\x02" + little(0, 2) + little(0, 10) + sizes + little(0, 10) +
                 little(all.size(), 4) + name;
    all += "PK\x03\x04" + little(0, 10) + sizes + name + content;
  }
  return all + directory + "PK\x05\x06" + little(0, 4) + little(members.size(), 2) +
         little(members.size(), 2) + little(directory.size(), 4) + little(all.size(), 4) +
         little(0, 2);
}

constexpr size_t kDamagedElems = 3'000'001;  // 12 MB: checked in several blocks

// One tensor w, all of whose elements are 0.
std::string archive_of_zeros(bool sums) {
  const auto text = [](const std::string& letters) {
    return "X" + little(letters.size(), 4) + letters;
  };
  const std::string count = "J" + little(kDamagedElems, 4);
  const std::string pickle = "\x80\x02}" + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" +
                             text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") +
                             count + "tQK" + '\0' + count + "\x85K\x01\x85tRs.";
  return archive({{"m/data.pkl", pickle}, {"m/data/0", std::string(4 * kDamagedElems, '\0')}},
                 sums);
}

TEST(TorchFile, DamagedElementsAreNotRead) {
  const ScratchFolder folder;
  const std::string whole = archive_of_zeros(true);
  const size_t data = whole.find("m/data/0") + 8;
  for (const size_t at : {size_t{0}, 2 * kDamagedElems, 4 * kDamagedElems - 1}) {
    std::string damaged = whole;
    damaged[data + at] ^= 1;
    const TorchFile file(folder.write("w.bin", damaged));  // its headers can be looked at
    for (int again = 0; again < 2; ++again)
      EXPECT_ERROR(file.bytes(file.entries()[0]), "w.bin: its member m/data/0 is damaged",
                   "download");
  }
  std::string description = whole;
  description[description.find("FloatStorage") + 13] ^= 1;
  EXPECT_ERROR(TorchFile(folder.write("w.bin", description)), "m/data.pkl is damaged");
}

TEST(TorchFile, ThreadsCheckAStorageTogether) {
  const ScratchFolder folder;
  std::string bytes = archive_of_zeros(true);
  for (const bool damaged : {false, true}) {
    if (damaged) bytes[bytes.find("m/data/0") + 8 + 11'999'999] ^= 4;
    const TorchFile file(folder.write("w.bin", bytes));
    std::atomic<int> errors = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back(
          [&] { errors += error_text([&] { (void)file.bytes(file.entries()[0]); }) != ""; });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(errors, damaged ? 8 : 0);
  }
}

TEST(TorchFile, WithoutSumsElementsAreTakenAsTheyAre) {
  const ScratchFolder folder;
  std::string bytes = archive_of_zeros(false);
  bytes[bytes.find("m/data/0") + 8 + 3] = 0x3f;
  const TorchFile file(folder.write("w.bin", bytes));
  EXPECT_EQ(values(file, "w")[0], 0.5);
}

// By the definition of the types: all 256 values of each.
TEST(Float8, EveryValueWidensExactly) {
  struct Type {
    const char* name;
    int exponent_bits, fraction_bits;
    bool infinities;
  };
  for (const Type& type : {Type{"F8_E4M3", 4, 3, false}, Type{"F8_E5M2", 5, 2, true}}) {
    for (int i = 0; i < 256; ++i) {
      const auto bits = static_cast<std::byte>(i);
      float wide = 0;
      to_f32(type.name, std::span(&bits, 1), std::span(&wide, 1));
      const int most = (1 << type.exponent_bits) - 1, bias = most / 2;
      const int exponent = (i >> type.fraction_bits) & most;
      const int fraction = i & ((1 << type.fraction_bits) - 1), whole = 1 << type.fraction_bits;
      const double sign = i >= 128 ? -1 : 1;
      const bool special = exponent == most && (type.infinities || fraction == whole - 1);
      if (special) {
        if (type.infinities && fraction == 0)
          EXPECT_EQ(wide, sign * std::numeric_limits<double>::infinity());
        else
          EXPECT_TRUE(std::isnan(wide));
        continue;
      }
      EXPECT_EQ(wide, sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias - type.fraction_bits)
                                            : std::ldexp(whole + fraction,
                                                         exponent - bias - type.fraction_bits)))
          << type.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace onefold
