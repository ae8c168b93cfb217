//! One write to a Hudi table by hudi-rs: `hudi-writer append|upsert URL ROWS.parquet`, `hudi-writer delete URL FILTER`.

use std::fs::File;

use hudi_core::table::Table;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let mut table = Table::new(&words[2]).await?;
    if words[1] == "delete" {
        println!("{:?}", table.delete(&words[3]).await?);
        return Ok(());
    }
    for rows in ParquetRecordBatchReaderBuilder::try_new(File::open(&words[3])?)?.build()? {
        let written = match words[1].as_str() {
            "append" => table.append([rows?]).await?,
            "upsert" => table.upsert([rows?]).await?,
            other => return Err(format!("{other}: append, upsert or delete").into()),
        };
        println!("{written:?}");
    }
    Ok(())
}
