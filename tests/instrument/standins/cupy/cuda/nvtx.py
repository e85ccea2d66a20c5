available = True
numbers = iter(range(1, 1000))


def RangePush(message, id_color=-1):
    message.encode()


def RangePushC(message, color=0):
    message.encode()


def RangePop():
    pass


def Mark(message, id_color=-1):
    message.encode()


def MarkC(message, color=0):
    message.encode()


def RangeStart(message, id_color):
    message.encode()
    return next(numbers)


def RangeEnd(range_id):
    pass
