import asyncio as _rao_native

_rao_round = round


def round(number, ndigits=None):
    if type(number) is not float or type(ndigits) is not int or number - number != 0.0:
        return _rao_round(number) if ndigits is None else _rao_round(number, ndigits)
    if ndigits >= 0:
        return number if ndigits > 340 else float(f"{number:.{ndigits}f}")
    size = abs(number)
    whole, unit = int(size), 10 ** min(-ndigits, 400)
    count, rest = divmod(whole, unit)
    if 2 * rest > unit or 2 * rest == unit and (size > whole or count % 2 == 1):
        count += 1
    return float(count * unit) if number > 0.0 else -float(count * unit)


async def _rao_caught(awaitable):
    try:
        return await awaitable
    except Exception as error:
        return error


def _rao_missing(name):
    raise NotImplementedError(f"asyncio.{name} is not supported here; use await and asyncio.gather")


class _RaoAsyncio:
    TimeoutError = TimeoutError

    def __repr__(self):
        return "<module 'asyncio'>"

    def gather(self, *awaitables, return_exceptions=False):
        if return_exceptions:
            return _rao_native.gather(*[_rao_caught(awaitable) for awaitable in awaitables])
        return _rao_native.gather(*awaitables)

    def sleep(self, delay, result=None):
        return _rao_native.sleep(delay, result)

    def create_task(self, call):
        if not repr(call).startswith("<coroutine external_future"):
            raise NotImplementedError("asyncio.create_task takes only a direct call of an async tool here; use asyncio.gather")
        return call

    def run(self, main):
        raise RuntimeError("asyncio.run() cannot be called from a running event loop")

    def wait(self, *args, **kwargs):
        _rao_missing("wait")

    def wait_for(self, *args, **kwargs):
        _rao_missing("wait_for")

    def as_completed(self, *args, **kwargs):
        _rao_missing("as_completed")


_rao_asyncio = _RaoAsyncio()
asyncio = _rao_asyncio
