import unittest

from export import chunks


class Test(unittest.TestCase):
    def test_one(self):
        self.assertEqual(chunks(*[[1, 2, 3], 2]), [[1, 2], [3]])


if __name__ == '__main__':
    unittest.main()
