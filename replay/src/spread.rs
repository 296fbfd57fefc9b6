//! Means of whole numbers and shares, with 95 % intervals, and the difference of two of them.

/// The 97.5 % point of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Whole numbers, such as the tokens of rollouts, as far as their mean and its interval need them. Sums are exact, so the
/// order in which numbers come does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    count: u64,
    sum: u64,
    squares: u128,
}

impl Spread {
    /// Takes one number more.
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.squares = self.squares.saturating_add(u128::from(value) * u128::from(value));
    }

    /// How many numbers there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 of none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "what is lost is far below what is shown")]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The squared standard error of the mean and its degrees of freedom; `None` of fewer than two numbers.
    #[expect(clippy::cast_precision_loss, reason = "what is lost is far below what is shown")]
    fn error(&self) -> Option<(f64, f64)> {
        let count = u128::from(self.count);
        let freedom = count.checked_sub(1).filter(|freedom| *freedom > 0)?;
        // n * sum of squares - square of sum, exactly.
        let scaled = (count * self.squares).saturating_sub(u128::from(self.sum) * u128::from(self.sum));
        Some((scaled as f64 / (count * count * freedom) as f64, freedom as f64))
    }

    /// Half the width of the mean's 95 % interval (Student's t); `None` of fewer than two numbers.
    #[must_use]
    pub fn half_width(&self) -> Option<f64> {
        self.error().map(|(error, freedom)| student(freedom) * error.sqrt())
    }

    /// The difference of the means, other less this, with half the width of its 95 % interval (Welch's t), which needs two
    /// numbers on both sides.
    #[must_use]
    pub fn difference(&self, other: &Spread) -> (f64, Option<f64>) {
        let half_width = self.error().zip(other.error()).map(|((a, da), (b, db))| {
            let both = a + b;
            if both == 0.0 {
                return 0.0;
            }
            let freedom = both * both / (a * a / da + b * b / db);
            student(freedom) * both.sqrt()
        });
        (other.mean() - self.mean(), half_width)
    }
}

/// The 97.5 % point of Student's t distribution, to three digits: exact for one and two degrees of freedom, above by its
/// expansion around the normal distribution (Abramowitz and Stegun 26.7.5).
fn student(freedom: f64) -> f64 {
    if freedom < 1.5 {
        return 12.706_204_736;
    }
    if freedom < 2.5 {
        return 4.302_652_730;
    }
    let powers = |coefficients: [f64; 4]| coefficients.iter().rev().fold(0.0, |sum, c| (sum * Z * Z) + c) * Z;
    let terms = [
        powers([1.0, 1.0, 0.0, 0.0]) / 4.0,
        powers([3.0, 16.0, 5.0, 0.0]) / 96.0,
        powers([-15.0, 17.0, 19.0, 3.0]) / 384.0,
        (powers([-945.0, -1920.0, 1482.0, 776.0]) + 79.0 * Z.powi(9)) / 92_160.0,
    ];
    let (mut value, mut power) = (Z, 1.0);
    for term in terms {
        power *= freedom;
        value += term / power;
    }
    value
}

/// The Wilson score interval of a share at 95 %; the whole range of none.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn wilson(successes: u64, trials: u64) -> (f64, f64) {
    if trials == 0 {
        return (0.0, 1.0);
    }
    let (n, p) = (trials as f64, successes as f64 / trials as f64);
    let scale = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / scale;
    // At none and at all of them a bound is the share itself, which rounding may miss by the last bit.
    ((middle - half).clamp(0.0, p), (middle + half).clamp(p, 1.0))
}

/// The difference of two shares, second less first, with its 95 % interval (Newcombe's hybrid score method).
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn share_difference(first: (u64, u64), second: (u64, u64)) -> (f64, f64, f64) {
    let share = |(successes, trials): (u64, u64)| successes as f64 / trials.max(1) as f64;
    let (a, b) = (share(first), share(second));
    let ((la, ha), (lb, hb)) = (wilson(first.0, first.1), wilson(second.0, second.1));
    let difference = b - a;
    let low = difference - ((b - lb).powi(2) + (ha - a).powi(2)).sqrt();
    let high = difference + ((hb - b).powi(2) + (a - la).powi(2)).sqrt();
    (difference, low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (freedom, value) in [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (4.0, 2.776), (10.0, 2.228), (30.0, 2.042)]
        {
            let got = student(freedom);
            assert!((got - value).abs() < 0.01, "{freedom}: {got}");
        }
        assert!((student(1e9) - Z).abs() < 1e-6);
    }

    #[test]
    fn a_share_lies_in_its_own_interval() {
        for trials in 1..200 {
            let ((none, _), (_, all)) = (wilson(0, trials), wilson(trials, trials));
            assert_eq!((none, all), (0.0, 1.0), "{trials}");
            for successes in 0..=trials {
                let (low, high) = wilson(successes, trials);
                let share = successes as f64 / trials as f64;
                assert!(low <= share && share <= high, "{successes} of {trials}: {low} to {high}");
            }
        }
    }

    #[test]
    fn means_and_their_differences_have_intervals() {
        let of = |values: &[u64]| {
            let mut spread = Spread::default();
            values.iter().for_each(|value| spread.add(*value));
            spread
        };
        let a = of(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!(a.mean(), 5.0);
        // Standard deviation 2.138, t of 7 degrees of freedom 2.365.
        assert!((a.half_width().unwrap() - 1.7876).abs() < 2e-3, "{:?}", a.half_width());
        assert_eq!(of(&[3]).half_width(), None);
        assert_eq!(of(&[3, 3]).half_width(), Some(0.0));
        assert_eq!(of(&[3, 3]).difference(&of(&[5, 5])), (2.0, Some(0.0)));
        let (difference, half) = a.difference(&of(&[8, 9, 9, 10]));
        assert_eq!(difference, 4.0);
        // Welch: error sqrt(0.5714 + 0.1667), 9.9 degrees of freedom, t 2.231.
        assert!((half.unwrap() - 1.917).abs() < 5e-3, "{half:?}");
    }

    #[test]
    fn wilson_and_newcombe_intervals_are_those_of_the_tables() {
        // Newcombe (1998), Interval estimation for the single proportion, Table I, method 3.
        for (successes, trials, low, high) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
        {
            let (l, h) = wilson(successes, trials);
            assert!((l - low).abs() < 5e-5 && (h - high).abs() < 5e-5, "{successes}/{trials}: {l} {h}");
        }
        assert_eq!(wilson(0, 0), (0.0, 1.0));
        // Newcombe (1998), Interval estimation for the difference, Table II, method 10.
        for (first, second, low, high) in
            [((48, 80), (56, 70), 0.0524, 0.3339), ((3, 10), (9, 10), 0.1705, 0.8090), ((0, 10), (10, 10), 0.6075, 1.0)]
        {
            let (_, l, h) = share_difference(first, second);
            assert!((l - low).abs() < 5e-5 && (h - high).abs() < 5e-5, "{first:?} {second:?}: {l} {h}");
        }
    }
}
