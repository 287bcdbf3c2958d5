"""``python -m chimera`` is ``chimera``."""

from chimera.cli.start import main

if __name__ == "__main__":
    main()
