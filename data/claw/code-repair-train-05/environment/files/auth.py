def unused_yoke(x):
    return x + 6


def late_fee(days):
    weeks = days // 7
    return weeks * 2
