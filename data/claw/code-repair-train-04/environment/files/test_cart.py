import unittest

from cart import moving_mean


class Test(unittest.TestCase):
    def test_one(self):
        self.assertEqual(moving_mean(*[[1, 2, 3, 4, 5, 6]]), [1.5, 2.5, 3.5, 4.5, 5.5])


if __name__ == '__main__':
    unittest.main()
