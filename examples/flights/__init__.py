"""The flights that left New York in 2013, followed aircraft by aircraft, through two crashes."""
