// State on a disk or in the host's memory, from the command line.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <thread>

#include "cli/support.h"

namespace onefold {
namespace {

class CliOffload : public Cli {
 protected:
  static Arguments on_disk() {
    return {R"(zero_optimization.offload_optimizer={"device":"nvme","nvme_path":"state"})",
            R"(zero_optimization.offload_param={"device":"nvme","nvme_path":"state"})"};
  }
  static Arguments in_host_memory() {
    return {R"(zero_optimization.offload_optimizer={"device":"cpu"})",
            R"(zero_optimization.offload_param={"device":"cpu"})"};
  }
  static Arguments with(Arguments keys, const Arguments& more) {
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  }
};

TEST_F(CliOffload, HasTheBitsOfARunOnTheDeviceAndSaysWhatTravels) {
  ASSERT_EQ(train({"run.output=plain"}).code, 0);
  const Outcome disk = train(with(on_disk(), {"run.output=disk"}), {});
  ASSERT_EQ(disk.code, 0) << disk.err;
  EXPECT_TRUE(read("disk/weights.safetensors") == read("plain/weights.safetensors"));
  expect_in(disk.err, {"offload  parameters in state, gradients and optimizer in state",
                       "on the disk; a step brings", "to the device", "from the device",
                       "written by this rank", "page cache", "a drive that is warranted for 600 TB",
                       "disk peak"});
  const Outcome cut =
      train(with(on_disk(), {R"(aio={"block_size":8192,"queue_depth":4})", "run.output=cut"}), {});
  ASSERT_EQ(cut.code, 0) << cut.err;
  EXPECT_TRUE(read("cut/weights.safetensors") == read("plain/weights.safetensors"));
  expect_in(cut.err, {"4 requests of 8.00 KiB"});
  const Outcome host = train(with(in_host_memory(), {"run.output=host"}), {});
  ASSERT_EQ(host.code, 0) << host.err;
  EXPECT_TRUE(read("host/weights.safetensors") == read("plain/weights.safetensors"));
  expect_in(host.err, {"in the host's memory; a step brings", "host peak"});
}

// Checkpoints in the middle and validation look at what the host has stepped, too.
TEST_F(CliOffload, WhatTheHostStepsHasTheSameBits) {
  const Arguments mixed = {R"(bf16={"enabled":true})", "run.save_every=2",
                           "data.validation_fraction=0.2", "run.eval_every=2"};
  const Outcome plain = train(with(mixed, {"run.output=plain"}));
  ASSERT_EQ(plain.code, 0) << plain.err;
  int runs = 0;
  for (const char* share : {"0", "0.5", "1"}) {
    const std::string output = fmt::format("host{}", ++runs);
    const Outcome host =
        train(with(mixed, {R"(zero_optimization.offload_optimizer={"device":"cpu"})",
                           fmt::format("run.host_step={}", share), "run.output=" + output}));
    ASSERT_EQ(host.code, 0) << host.err;
    EXPECT_TRUE(read(output + "/weights.safetensors") == read("plain/weights.safetensors"));
  }
}

// As containers do: the calling thread, and what it starts, gets no ring.
bool forbid_io_uring() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(CliOffload, WhereIoUringIsForbiddenThreadsDoTheSameAndAreNamed) {
  ASSERT_EQ(train({"run.output=plain"}).code, 0);
  Outcome disk;
  bool forbidden = false;
  std::thread([&] {
    forbidden = forbid_io_uring();
    if (forbidden) disk = train(with(on_disk(), {"run.output=disk"}), {});
  }).join();
  if (!forbidden) GTEST_SKIP() << "this system has no filters of calls";
  ASSERT_EQ(disk.code, 0) << disk.err;
  expect_in(disk.err, {"threads (io_uring is not allowed)", "a drive that is warranted for"});
  EXPECT_TRUE(read("disk/weights.safetensors") == read("plain/weights.safetensors"));
}

TEST_F(CliOffload, ACheckpointIsLoadedOnAnyTier) {
  ASSERT_EQ(train({"run.output=plain", "run.steps=4"}).code, 0);
  ASSERT_EQ(train(with(on_disk(), {"run.output=part", "run.steps=2"})).code, 0);
  const auto go_on = [&](const Arguments& keys, const std::string& output) {
    const Outcome outcome = train(with(keys, {"run.output=" + output, "run.steps=4"}),
                                  {"--resume", "part", "--allow-changes"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(read(output + "/weights.safetensors") == read("plain/weights.safetensors"))
        << output;
  };
  go_on({}, "device");
  go_on(in_host_memory(), "host");
  go_on(on_disk(), "disk");
}

TEST_F(CliOffload, ALimitThatNothingElseFitsIsKept) {
  const auto planned = [&](const Arguments& keys) {
    const Outcome outcome = train(keys, {"--plan-only", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json all = planned({}), little = planned(on_disk());
  const auto peak = little["planned_peak_bytes"].get<int64_t>();
  ASSERT_LT(peak, all["planned_peak_bytes"].get<int64_t>());
  EXPECT_GT(little["planned_disk_bytes"].get<int64_t>(), 0);
  EXPECT_GT(little["planned_fetched_bytes_per_step"].get<int64_t>(), 0);
  EXPECT_EQ(all["planned_disk_bytes"], 0);
  const Outcome run = train(with(on_disk(), {fmt::format("run.memory={}", peak)}), {"--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out)["ledger_peak_bytes"].get<int64_t>(), peak);
}

TEST_F(CliOffload, WhatIsMissingIsNamed) {
  expect_error(train({R"(zero_optimization.offload_param={"device":"nvme"})"}), 1,
               {"offload_param.nvme_path is missing"});
  expect_error(
      train({R"(zero_optimization.offload_param={"device":"nvme","nvme_path":"/proc/x"})"}), 1,
      {"/proc/x"});
}

}  // namespace
}  // namespace onefold
