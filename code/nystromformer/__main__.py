"""`python -m nystromformer COMMAND …`."""

from nystromformer.command_line.console import main

if __name__ == "__main__":
    main()
