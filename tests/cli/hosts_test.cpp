// Ranks on several hosts: network namespaces with an interface and a host's name each, joined by a
// virtual cable, with MPI's messages over TCP. They need root, ip and unshare.
#include <cstdlib>

#include "base/clock.h"
#include "cli/support.h"
#include "launch.h"

namespace onefold {
namespace {

constexpr const char* kBatch = "train_batch_size=8";  // of four ranks and two micro-batches

int run_shell(const std::string& line) { return std::system((line + " > /dev/null 2>&1").c_str()); }

class CliHosts : public Cli {
 protected:
  void SetUp() override {
    if (!std::getenv("ONEFOLD_SLOW_TESTS")) GTEST_SKIP() << "ctest -L slow runs it";
    if (const std::string why = test::no_mpirun(""); !why.empty()) GTEST_SKIP() << why;
    for (const std::string& host : {a_, b_})
      if (run_shell("ip netns add " + host) != 0)
        GTEST_SKIP() << "network namespaces need root and iproute2";
    const std::string cable =
        fmt::format("ip link add {0}v netns {0} type veth peer {1}v netns {1}", a_, b_);
    ASSERT_EQ(run_shell(cable), 0);
    for (const auto& [host, number] : {std::pair(a_, 1), std::pair(b_, 2)}) {
      ASSERT_EQ(run_shell(fmt::format("ip -n {0} addr add 10.77.0.{1}/24 dev {0}v", host, number)),
                0);
      for (const std::string& name : {std::string("lo"), host + "v"})
        ASSERT_EQ(run_shell(fmt::format("ip -n {} link set {} up", host, name)), 0);
    }
    // What mpirun calls in the place of ssh: a host's address, and the words of a command line.
    folder_.write("agent", fmt::format("#!/bin/sh\ncase $1 in *.1) host={};; *) host={};; esac\n"
                                       "shift\nexec ip netns exec $host unshare --uts "
                                       "sh -c \"hostname $host; $*\"\n",
                                       a_, b_));
    folder_.write("hosts", "10.77.0.1 slots=2\n10.77.0.2 slots=2\n");
    std::filesystem::permissions(folder_.path("agent"), std::filesystem::perms::owner_all);
  }
  void TearDown() override {
    for (const std::string& host : {a_, b_}) run_shell("ip netns delete " + host);
  }

  // Two ranks on each host.
  Environment two_hosts() const {
    return {.launcher = {
                "ip", "netns", "exec", a_, "unshare", "--uts", "sh", "-c",
                "hostname " + a_ + " && exec mpirun --mca plm_rsh_agent " + folder_.path("agent") +
                    " --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 "
                    "--mca oob_tcp_if_include 10.77.0.0/24 --hostfile hosts --bind-to none -n 4 "
                    "\"$0\" \"$@\""}};
  }

  // Processes of the binary that work in this test's folder.
  int ranks_alive() const {
    int count = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const auto binary = std::filesystem::read_symlink(entry.path() / "exe", none);
      const auto folder = std::filesystem::read_symlink(entry.path() / "cwd", none);
      count += binary == std::filesystem::canonical(ONEFOLD_BINARY) &&
               folder == std::filesystem::canonical(folder_.path(""));
    }
    return count;
  }
  bool comes_true(const std::function<bool()>& condition, double seconds) const {
    for (const double end = now_seconds() + seconds; now_seconds() < end;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return condition();
  }

  const std::string a_ = fmt::format("of{}a", ::getpid()), b_ = fmt::format("of{}b", ::getpid());
};

TEST_F(CliHosts, HaveTheBitsOfOneHost) {
  for (const char* keys : {"zero_optimization.stage=2", "mesh.pipeline=2"}) {
    ASSERT_EQ(
        train({keys, kBatch, "run.output=one"}, {"--quiet", "--ranks", "4", "--overwrite"}).code,
        0);
    const Outcome run = onefold(
        train_arguments({keys, kBatch, "run.output=two"}, {"--quiet", "--overwrite"}), two_hosts());
    ASSERT_EQ(run.code, 0) << run.err << run.out;
    EXPECT_EQ(read("one/weights.safetensors"), read("two/weights.safetensors")) << keys;
  }
}

// Parameters travel between hosts once a step, and inside each for the rest of it.
TEST_F(CliHosts, ThatKeepWhatWasGatheredHaveTheBitsOfOneThatDoesNot) {
  const std::vector<std::string> keys = {"zero_optimization.stage=3", kBatch,
                                         "zero_optimization.stage3_param_persistence_threshold=0"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = keys;
    all.insert(all.end(), more);
    return all;
  };
  ASSERT_EQ(train(with({"run.output=one"}), {"--quiet", "--ranks", "4"}).code, 0);
  const Outcome run = onefold(
      train_arguments(with({"zero_optimization.zero_hpz_partition_size=2", "run.output=two"}),
                      {"--quiet", "--json"}),
      two_hosts());
  ASSERT_EQ(run.code, 0) << run.err << run.out;
  EXPECT_EQ(read("one/weights.safetensors"), read("two/weights.safetensors"));
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
}

TEST_F(CliHosts, ALinkThatGoesDownEndsAllRanksByName) {
  const Process run(
      folder_.path(""),
      train_arguments({kBatch, "run.steps=100000", "run.timeout=3", "steps_per_print=1"}, {}),
      two_hosts());
  const bool trains = comes_true(
      [&] { return exists("run/metrics.jsonl") && read("run/metrics.jsonl").size() > 1000; }, 60);
  EXPECT_TRUE(trains);
  ASSERT_EQ(run_shell(fmt::format("ip -n {0} link set {0}v down", a_)), 0);
  EXPECT_TRUE(comes_true([&] { return ranks_alive() == 0; }, 30)) << "run.timeout is 3 seconds";
  run.send(SIGKILL);  // mpirun itself waits for its other half
  const Outcome outcome = run.wait();
  expect_in(outcome.err + outcome.out, {"did not reach", "within 3 seconds, where rank"});
}

}  // namespace
}  // namespace onefold
