// scripts/cuda.sh: NVIDIA's wheels are installed where there is a card and no toolkit, and of a
// toolkit what it lacks. Driver, toolkit and pip are stand-ins in a folder that is the PATH.
#include <sys/stat.h>

#include <cstdlib>

#include "cli/support.h"

namespace onefold {
namespace {

class CudaSetup : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& script) const {
    const std::string path = folder_.write("bin/" + name, "#!/bin/bash\n" + script);
    chmod(path.c_str(), 0755);
  }
  void put_card() const { put("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n"); }
  void put_toolkit() const {
    put("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'\n");
  }
  // Notes what it is asked for, and makes what the real one would.
  void put_pip(int code) const {
    put("python3", fmt::format(R"(echo "$@" >> '{}'
[ "$3" = --version ] && exit 0
for last; do :; done
while [ $# -gt 0 ]; do [ "$1" = --target ] && mkdir -p "$2/nvidia/cu13/lib"; shift; done
exit {}
)",
                               folder_.path("asked"), code));
  }
  // The script's exit code; what it said is in `said_`.
  int run(const std::string& environment = "") {
    const std::string command = fmt::format(
        "PATH='{0}/bin':/usr/bin:/bin CUDA_HOME='{0}/none' ONEFOLD_CUDA_FOLDER='{0}/cuda' "
        "ONEFOLD_SYSTEM_INCLUDE='{0}/usr' {1} "
        "'{2}/scripts/cuda.sh' > '{0}/said' 2>&1",
        root(), environment, ONEFOLD_SOURCE_DIR);
    const int status = std::system(command.c_str());
    said_ = read_file(folder_.path("said"));
    return WEXITSTATUS(status);
  }
  std::string root() const {
    const std::string path = folder_.path("");
    return path.substr(0, path.size() - 1);
  }
  bool asked() const { return std::filesystem::exists(folder_.path("asked")); }
  void SetUp() override {
    for (const char* folder : {"bin", "include", "usr"})
      std::filesystem::create_directories(folder_.path(folder));
  }

  ScratchFolder folder_;
  std::string said_;
};

TEST_F(CudaSetup, WithoutACardNothingHappens) {
  put_pip(0);
  put("nvidia-smi", "echo 'No devices were found'\nexit 6\n");
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(said_, "");
  EXPECT_FALSE(asked());
}

TEST_F(CudaSetup, AToolkitOfTheSystemIsUsed) {
  put_card();
  put_pip(0);
  put_toolkit();
  folder_.write("include/cudnn.h", "");
  folder_.write("usr/cudnn_frontend.h", "");
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(said_, "");
  EXPECT_FALSE(asked());
}

TEST_F(CudaSetup, OfAToolkitWhatItLacksIsInstalledOnce) {
  put_card();
  put_pip(0);
  put_toolkit();
  folder_.write("include/cudnn.h", "");
  EXPECT_EQ(run(), 0);
  expect_in(said_, {"the toolkit lacks nvidia-cudnn-frontend", "ONEFOLD_CUDA=off"});
  const std::string asked = read_file(folder_.path("asked"));
  expect_in(asked, {"--no-deps", "nvidia-cudnn-frontend"});
  EXPECT_EQ(asked.find("nvcc"), std::string::npos) << asked;
  EXPECT_EQ(asked.find("nvidia-cudnn-cu13"), std::string::npos) << asked;
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(said_, "");
  EXPECT_EQ(read_file(folder_.path("asked")), asked) << "not again";
}

TEST_F(CudaSetup, WithoutWhatAToolkitLacksTheBuildGoesOnAndSaysSo) {
  put_card();
  put_pip(1);
  put_toolkit();
  EXPECT_EQ(run(), 0);
  expect_in(said_, {"the toolkit lacks nvidia-cudnn-cu13 nvidia-cudnn-frontend",
                    "could not be installed", "slower kernels"});
}

TEST_F(CudaSetup, WheelsAreInstalledOnceWhereThereIsNone) {
  put_card();
  put_pip(0);
  put("nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'\n");
  EXPECT_EQ(run(), 0);
  expect_in(said_, {"a card and no toolkit", "ONEFOLD_CUDA=off"});
  const std::string asked = read_file(folder_.path("asked"));
  expect_in(asked, {"--no-deps", "nvidia-cuda-nvcc==13.*", "nvidia-cublas==13.*",
                    "nvidia-cudnn-cu13", "nvidia-nccl-cu13"});
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("cuda/nvidia/cu13/lib/libcudart.so")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("cuda/nvidia/cu13/lib64")));
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(said_, "");
  EXPECT_EQ(read_file(folder_.path("asked")), asked) << "not again";
}

TEST_F(CudaSetup, WithoutWheelsTheBuildGoesOnAndSaysSo) {
  put_card();
  put_pip(1);
  put("nvcc", "echo nothing\n");
  EXPECT_EQ(run(), 0);
  expect_in(said_, {"could not be installed", "going on without the device cuda"});
  EXPECT_FALSE(std::filesystem::exists(folder_.path("cuda/complete")));
}

TEST_F(CudaSetup, ItCanBeLeftOut) {
  put_card();
  put_pip(0);
  put("nvcc", "echo nothing\n");
  EXPECT_EQ(run("ONEFOLD_CUDA=off"), 0);
  EXPECT_FALSE(asked());
}

}  // namespace
}  // namespace onefold
