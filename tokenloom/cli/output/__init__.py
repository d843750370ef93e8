"""The files that commands write: their locations and layouts."""
