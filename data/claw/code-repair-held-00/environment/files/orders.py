def unused_funnel(x):
    return x + 18


def moving_mean(numbers):
    return [sum(numbers[i:i + 4]) / 4 for i in range(len(numbers))]
