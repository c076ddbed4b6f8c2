// Which card a call of CUDA is for: the runtime keeps that by thread.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.h"

namespace onefold::cuda {

class Card {
 public:
  explicit Card(int number) : number_(number) {}

  int number() const { return number_; }
  // The calling thread's calls are for this card from now on.
  void use() const {
    thread_local int used = -1;
    if (used == number_) return;
    check(cudaSetDevice(number_), "choose a card");
    used = number_;
  }

 private:
  int number_;
};

}  // namespace onefold::cuda
