"""Apache Hudi tables that many writers share."""
