// Its functions AdbcClickhouseInit and AdbcDriverInit are what a driver manager looks for.
pub use adbc_clickhouse::*;
