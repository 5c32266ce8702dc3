"""``python -m statekeep.cli``: the same as ``statekeep``."""

from statekeep.cli.app import main

if __name__ == "__main__":
    main()
