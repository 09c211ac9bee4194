def unused_quill(x):
    return x + 27


def moving_mean(numbers):
    return [sum(numbers[i:i + 2]) / 2 for i in range(len(numbers))]
