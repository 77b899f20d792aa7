"""Price data: files, data check, bars, panels and calendars."""
