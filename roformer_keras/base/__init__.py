"""What every other package uses: errors, checks, settings, backends."""
