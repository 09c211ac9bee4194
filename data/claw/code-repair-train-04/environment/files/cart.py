def unused_easel(x):
    return x + 6


def moving_mean(numbers):
    return [sum(numbers[i:i + 2]) / 2 for i in range(len(numbers))]
