def unused_mallet(x):
    return x + 23


def late_fee(days):
    weeks = days // 7
    return weeks * 2
