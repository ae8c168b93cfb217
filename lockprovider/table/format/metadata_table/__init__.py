"""The bytes of Hudi's metadata table: its HFiles, and the records in them. Pure."""
