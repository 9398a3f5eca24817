//! Sessions that want the same of one link get the same.

use super::Violation;

/// Jain's index of how fairly something is shared: 1 if all have the same, 1/n if one has all.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

/// Complains if the index of `shares` is below `least`.
pub fn fair(shares: &[u64], least: f64) -> Result<(), Violation> {
    let index = jain(shares);
    if index >= least {
        return Ok(());
    }
    let text = format!("Jain's index is {index:.3}, below {least}: {shares:?}");
    Err(Violation::new("fairness", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equals_and_a_share_for_one() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[8, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[]), 0.0);
        assert_eq!(fair(&[5, 5, 4, 5], 0.95), Ok(()));
        assert_eq!(fair(&[9, 1, 1, 1], 0.95).unwrap_err().checker, "fairness");
    }
}
