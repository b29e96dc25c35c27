#include "data/row_sources.h"

#if SLUICE_PARQUET
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include "core/json.h"
#endif

namespace sluice {

#if SLUICE_PARQUET

namespace {

constexpr int64_t rows_at_once = 64;

void check_arrow(const arrow::Status& status) {
  check(status.ok(), ErrorCode::bad_file,
        status.ok() ? std::string()
                    : "the Parquet data is damaged or cut off (" + status.message() + "); copy or download it again");
}

template <class T>
T value_of(arrow::Result<T> result) {
  check_arrow(result.status());
  return std::move(result).ValueUnsafe();
}

Json json_of(const arrow::Scalar& value);

Json list_of(const arrow::Array& values) {
  Json list = Json::array();
  for (int64_t i = 0; i < values.length(); ++i) list.push_back(json_of(*value_of(values.GetScalar(i))));
  return list;
}

// Every struct of a column has all keys that any of them has, null where a row had none: these are left out.
Json object_of(const arrow::StructScalar& value) {
  Json object = Json::object();
  for (size_t i = 0; i < value.value.size(); ++i) {
    if (value.value[i]->is_valid) object[value.type->field(static_cast<int>(i))->name()] = json_of(*value.value[i]);
  }
  return object;
}

// Times, decimals and the like as Arrow writes them.
Json json_of(const arrow::Scalar& value) {
  using Type = arrow::Type;
  if (!value.is_valid) return nullptr;
  switch (value.type->id()) {
    case Type::BOOL: return static_cast<const arrow::BooleanScalar&>(value).value;
    case Type::FLOAT: return static_cast<const arrow::FloatScalar&>(value).value;
    case Type::DOUBLE: return static_cast<const arrow::DoubleScalar&>(value).value;
    case Type::UINT64: return static_cast<const arrow::UInt64Scalar&>(value).value;
    case Type::INT8:
    case Type::INT16:
    case Type::INT32:
    case Type::UINT8:
    case Type::UINT16:
    case Type::UINT32:
    case Type::INT64: return static_cast<const arrow::Int64Scalar&>(*value_of(value.CastTo(arrow::int64()))).value;
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST: return list_of(*static_cast<const arrow::BaseListScalar&>(value).value);
    case Type::STRUCT: return object_of(static_cast<const arrow::StructScalar&>(value));
    case Type::DICTIONARY:
      return json_of(*value_of(static_cast<const arrow::DictionaryScalar&>(value).GetEncodedValue()));
    case Type::STRING:
    case Type::LARGE_STRING: return std::string(static_cast<const arrow::BaseBinaryScalar&>(value).view());
    default: return value.ToString();
  }
}

class ParquetRows : public RowSource {
 public:
  explicit ParquetRows(const std::string& path) {
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();  // a column's chunk need not fit into memory
    parquet::ArrowReaderProperties batches;
    batches.set_batch_size(rows_at_once);
    batches.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check_arrow(builder.Open(value_of(arrow::io::ReadableFile::Open(path)), properties));
    check_arrow(builder.properties(batches)->Build(&file_));
    batches_ = value_of(file_->GetRecordBatchReader());
  }

  bool next(RawRow& row) override {
    while (batch_ == nullptr || at_ == batch_->num_rows()) {
      check_arrow(batches_->ReadNext(&batch_));
      at_ = 0;
      if (batch_ == nullptr) return false;
    }
    ++number_;
    Json object = Json::object();
    for (int c = 0; c < batch_->num_columns(); ++c) {
      const auto value = value_of(batch_->column(c)->GetScalar(at_));
      if (value->is_valid) object[batch_->column_name(c)] = json_of(*value);
    }
    ++at_;
    try {
      text_ = object.dump();
    } catch (const Json::exception&) {
      throw Error(ErrorCode::bad_file, fmt::format("row {}: it has text that is not UTF-8", number_));
    }
    row = {.text = text_, .number = number_};
    return true;
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::string text_;
  int64_t at_ = 0, number_ = 0;
};

}  // namespace

bool reads_parquet() { return true; }

std::unique_ptr<RowSource> parquet_rows(const std::string& path) {
  try {
    return std::make_unique<ParquetRows>(path);
  } catch (Error& e) {
    throw e.while_doing(path);
  }
}

#else

bool reads_parquet() { return false; }

std::unique_ptr<RowSource> parquet_rows(const std::string& path) {
  throw Error(ErrorCode::bad_file,
              path +
                  " is a Parquet file, which this build does not read: build with -DSLUICE_PARQUET=ON, or turn it into "
                  "JSON lines (pandas: read_parquet(…).to_json(…, orient='records', lines=True))");
}

#endif

}  // namespace sluice
