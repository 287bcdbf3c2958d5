"""``python -m chimera`` is ``chimera``."""

from chimera.cli.main import main

if __name__ == "__main__":
    main()
