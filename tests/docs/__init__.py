"""What holds README and docs/ to the code: every snippet runs, every link and name is there."""
