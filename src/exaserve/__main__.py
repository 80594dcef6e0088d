"""``python -m exaserve``: the same as the command ``exaserve``."""

from exaserve.cli.main import main

if __name__ == "__main__":
    main()
