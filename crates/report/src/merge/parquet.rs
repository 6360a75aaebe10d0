//! The costs of many probes as Parquet, for DuckDB and Spark. `docs/merge-json.md` describes the
//! columns.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

/// The values of a column, a row each.
pub(super) enum Column {
    /// Texts.
    Text(Vec<String>),
    /// Texts of which some are missing.
    MaybeText(Vec<Option<String>>),
    /// Whole numbers.
    Whole(Vec<u64>),
    /// Whole numbers of which some are missing.
    MaybeWhole(Vec<Option<u64>>),
    /// Numbers.
    Number(Vec<f64>),
    /// Yes or no.
    Flag(Vec<bool>),
}

/// A file with these columns, all of the same length.
pub(super) fn file(columns: &[(&str, Column)]) -> Result<Vec<u8>, ParquetError> {
    let fields = columns.iter().map(|(name, column)| column.field(name).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("costs").with_fields(fields).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), properties)?;
    let mut rows = writer.next_row_group()?;
    for (_, column) in columns {
        if let Some(mut writer) = rows.next_column()? {
            column.write(&mut writer)?;
            writer.close()?;
        }
    }
    rows.close()?;
    writer.into_inner()
}

impl Column {
    fn field(&self, name: &str) -> Result<Type, ParquetError> {
        let (physical, logical) = match self {
            Self::Text(_) | Self::MaybeText(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Self::Whole(_) | Self::MaybeWhole(_) => (Physical::INT64, None),
            Self::Number(_) => (Physical::DOUBLE, None),
            Self::Flag(_) => (Physical::BOOLEAN, None),
        };
        let repetition = match self {
            Self::MaybeText(_) | Self::MaybeWhole(_) => Repetition::OPTIONAL,
            _ => Repetition::REQUIRED,
        };
        let field = Type::primitive_type_builder(name, physical).with_repetition(repetition);
        field.with_logical_type(logical).build()
    }

    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        // A missing value has the definition level 0, and is none of the values.
        fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
            values.iter().map(|value| i16::from(value.is_some())).collect()
        }
        let text = |text: &String| ByteArray::from(text.as_str());
        // No probe counts as far as 2^63.
        let whole = |number: &u64| i64::try_from(*number).unwrap_or(i64::MAX);
        let written = match self {
            Self::Text(values) => {
                let values: Vec<_> = values.iter().map(text).collect();
                writer.typed::<ByteArrayType>().write_batch(&values, None, None)
            }
            Self::MaybeText(values) => {
                let known: Vec<_> = values.iter().flatten().map(text).collect();
                writer.typed::<ByteArrayType>().write_batch(&known, Some(&levels(values)), None)
            }
            Self::Whole(values) => {
                let values: Vec<_> = values.iter().map(whole).collect();
                writer.typed::<Int64Type>().write_batch(&values, None, None)
            }
            Self::MaybeWhole(values) => {
                let known: Vec<_> = values.iter().flatten().map(whole).collect();
                writer.typed::<Int64Type>().write_batch(&known, Some(&levels(values)), None)
            }
            Self::Number(values) => writer.typed::<DoubleType>().write_batch(values, None, None),
            Self::Flag(values) => writer.typed::<BoolType>().write_batch(values, None, None),
        };
        written.map(drop)
    }
}
