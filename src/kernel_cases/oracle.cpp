#include "kernel_cases/oracle.h"

#include <algorithm>
#include <cmath>

namespace onefold::cases {

Doubles gradient_of(const std::function<double(const Doubles&)>& f, Doubles x) {
  constexpr double kStep = 1e-4;
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    x[i] = center + kStep;
    const double above = f(x);
    x[i] = center - kStep;
    const double below = f(x);
    x[i] = center;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Doubles plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Doubles magnitudes(Doubles x) {
  for (double& value : x) value = std::abs(value);
  return x;
}

double largest(const Doubles& x) { return x.empty() ? 0 : *std::max_element(x.begin(), x.end()); }

float dropout_multiplier(PhiloxKey key, uint64_t sample, uint64_t element, float rate) {
  const uint64_t block = element / 4;
  const PhiloxWords words =
      philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                   static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
  return philox_uniform(words[element % 4]) >= rate ? 1.0f / (1.0f - rate) : 0.0f;
}

std::vector<int32_t> document_starts(int64_t batch, int64_t length,
                                     const std::vector<int64_t>& documents) {
  std::vector<int32_t> starts;
  size_t next = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t begin = 0; begin < length;) {
      const int64_t end = std::min(length, begin + documents[next++ % documents.size()]);
      starts.insert(starts.end(), static_cast<size_t>(end - begin), static_cast<int32_t>(begin));
      begin = end;
    }
  return starts;
}

std::vector<DocumentRows> documents_of(const std::vector<int32_t>& starts, int64_t length) {
  std::vector<DocumentRows> documents;
  for (int64_t row = 0; row < static_cast<int64_t>(starts.size()); ++row) {
    if (starts[static_cast<size_t>(row)] == row % length) documents.push_back({row, row});
    documents.back().end = row + 1;
  }
  return documents;
}

}  // namespace onefold::cases
