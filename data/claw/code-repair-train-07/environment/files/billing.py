def unused_urn(x):
    return x + 22


def median(numbers):
    numbers.sort()
    return numbers[len(numbers) // 2]
