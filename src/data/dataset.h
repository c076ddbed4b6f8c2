// Training data as one row of tokens with the places where documents start, and which tokens are
// trained on: mapped from token files, or encoded from text when opened. A Dataset is a handle;
// copies share the tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "data/documents.h"
#include "data/tokenizer.h"

namespace onefold {

// Tokens [begin, end) of a dataset.
struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t tokens() const { return end - begin; }
};

class Dataset {
 public:
  // What one entry of a list of files with weights has become.
  struct Group {
    std::string name;
    double weight = 1;
    TokenRange range;
  };

  // Text needs a tokenizer. Token files do not; given one, they must have been made with it. Those
  // of other trainers need one, or source.vocab_size.
  static Dataset open(const DataSource& source, const Tokenizer* tokenizer, ThreadPool& pool);
  // Tokens that are in memory already. Every document gets end_of_text at its end, unless that is
  // -1, or is there already.
  static Dataset from_documents(std::span<const std::vector<int32_t>> documents, int64_t vocab_size,
                                int32_t end_of_text);

  int64_t tokens() const { return tokens_; }  // with an end-of-text for each document
  int64_t documents() const { return documents_; }
  int64_t vocab_size() const { return vocab_size_; }
  int32_t end_of_text() const { return end_of_text_; }  // -1 if documents do not end with a token
  // One for all files, unless they have weights.
  const std::vector<Group>& groups() const { return groups_; }
  const DocumentReport& report() const { return report_; }  // lines that were skipped
  int64_t memory_bytes() const {
    return memory_bytes_;
  }  // held in memory; mapped files are not counted

  // Token at which document d starts; for d == documents(), tokens().
  int64_t document_start(int64_t d) const;
  // The file that holds a document (or what it is one of), and its number there.
  std::pair<std::string, int64_t> file_of_document(int64_t d) const;
  // The document that holds a token.
  int64_t document_of(int64_t token) const;
  // Copies tokens [begin, begin + dst.size()), checking each against the vocabulary.
  void read(int64_t begin, std::span<int32_t> dst) const;
  // The same with -1 in place of tokens that are not trained on.
  void read_targets(int64_t begin, std::span<int32_t> dst) const;
  bool masked() const;                  // whether there are any
  bool is_target(int64_t token) const;  // whether it is trained on
  int64_t count_targets(TokenRange range) const;

  // Throws UserError unless a model with this vocabulary can read every token.
  void check_vocabulary(int64_t model_vocab_size) const;
  // Throws UserError if token files of the two say that other tokenizers made them.
  void require_tokenizer_of(const Dataset& other) const;

 private:
  struct Segment {  // one file's tokens
    std::string name;
    std::shared_ptr<const void> owner;
    const std::byte* data = nullptr;
    int token_bytes = 2;
    int64_t first_token = 0, tokens = 0;
    int64_t first_document = 0;
    std::span<const uint64_t> starts;  // of its documents, within it
    const uint8_t* mask = nullptr;     // TargetMask's bits; null: all are trained on
  };

  void append(Segment segment);
  void append_source(const DataSource& source, const Tokenizer* tokenizer, ThreadPool& pool);
  void append_token_file(const std::string& path, const Tokenizer* tokenizer, int64_t vocab_size);
  void require_alike(const std::string& path, int64_t vocab_size, int32_t end_of_text);
  void require_tokenizer(const std::string& path, uint64_t hash);
  template <typename Word, typename Fill>
  void append_memory(std::string name, const Fill& fill);
  const Segment& segment_of_token(int64_t token) const;
  const Segment& segment_of_document(int64_t document) const;

  std::vector<Segment> segments_;
  int64_t tokens_ = 0, documents_ = 0, vocab_size_ = 0, memory_bytes_ = 0;
  int32_t end_of_text_ = -1;
  uint64_t tokenizer_hash_ = 0;  // of token files; 0: none says it
  std::string tokenizer_file_;   // the first that does
  std::vector<Group> groups_;
  DocumentReport report_;
};

struct DataSplit {
  TokenRange train, validation;
};

// Sets the end of the data aside. The parts never share a token, and the same data and fraction
// give the same parts. The cut is at the start of the document nearest to the wanted place; but
// where that would hold out less than half or more than twice the fraction (one document, or few
// and large ones), it is at the wanted token itself. 0 holds out nothing.
DataSplit split_dataset(const Dataset& dataset, double validation_fraction);

}  // namespace onefold
