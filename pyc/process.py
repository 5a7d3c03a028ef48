"""The process `pyc`. Signals are taken care of before anything else is imported."""


def entry() -> None:
    """Run this process's command line and end with its exit code.

    Ends at once: every command has closed what it opened by then, and taking the interpreter apart behind a model
    that ran takes 40 ms.
    """
    import os
    import signal

    words = {signal.SIGINT: b"interrupted", signal.SIGTERM: b"terminated", signal.SIGHUP: b"hung up"}

    def end_at_once(number: int, frame: object) -> None:
        try:
            os.write(2, b"pyc: " + words[signal.Signals(number)] + b"\n")
        finally:
            os._exit(128 + number)

    for number in words:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, and a job in the background
            signal.signal(number, end_at_once)

    from pyc import streams
    from pyc.cli import main
    from pyc.signals import leave, message_and_code, take_over

    streams.take_over()
    try:
        take_over()
        code = main()
    except KeyboardInterrupt as error:
        message, code = message_and_code(error)
        leave(code, message)
    leave(code)
