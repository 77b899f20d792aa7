"""Reading: a file of prices -> a RawTable, before any rule about bad data."""
