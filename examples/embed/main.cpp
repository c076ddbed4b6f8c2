// Onefold inside a C++ program: a small Llama learns a nursery rhyme by its bytes, and recites it.
#include <onefold/onefold.h>

#include <cstdio>
#include <string>
#include <vector>

int main() try {
  const std::string rhyme =
      "Row, row, row your boat,\ngently down the stream.\n"
      "Merrily, merrily, merrily, merrily,\nlife is but a dream.\n";
  const int64_t length = 48, batch = 4;

  onefold::Trainer trainer(
      {.model = R"({"preset": "llama-tiny", "vocab_size": 256, "max_sequence_length": 128})",
       .micro_batch = batch,
       .sequence_length = length,
       .gradient_clipping = 1.0});

  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    std::vector<int32_t> tokens, targets;
    for (int64_t row = 0; row < batch; ++row) {
      const size_t start = static_cast<size_t>(step * 29 + row * 17);
      for (size_t i = start; i < start + length; ++i) {
        tokens.push_back(rhyme[i % rhyme.size()]);
        targets.push_back(rhyme[(i + 1) % rhyme.size()]);
      }
    }
    loss = trainer.step(tokens, targets, 3e-3).loss;
    if (step % 50 == 0) std::printf("step %3d  loss %.3f\n", step, loss);
  }
  std::printf("final loss %.3f, peak memory %lld bytes of %lld planned\n", loss,
              static_cast<long long>(trainer.memory().measured_peak_bytes),
              static_cast<long long>(trainer.memory().planned_peak_bytes));

  const std::string start = "gently down";
  std::string text = start;
  for (const int32_t token : trainer.generate(std::vector<int32_t>(start.begin(), start.end()),
                                              {.max_tokens = 64, .temperature = 0}))
    text += static_cast<char>(token);
  std::printf("%s\n", text.c_str());
  return text.starts_with("gently down the stream.") ? 0 : 1;
} catch (const onefold::UserError& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
