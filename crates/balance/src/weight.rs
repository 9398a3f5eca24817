//! The weight of a backend, by its own load reports (gRPC A58, "Subchannel Weights").

use crate::load_report::LoadReport;
use crate::policy::Weighting;

/// What a backend has reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    /// Requests a second at full use; 0 before the first report.
    weight: f64,
    updated_at: u64,
    /// Since when it has reported without a gap; `None` before the first report.
    reports_since: Option<u64>,
}

impl Weight {
    /// Takes in a report. One without a rate or without use says nothing.
    pub fn handle_report(&mut self, now: u64, report: &LoadReport, settings: &Weighting) {
        let rate = report.requests_per_second;
        let mut utilization = match report.application_utilization > 0.0 {
            true => report.application_utilization,
            false => report.cpu_utilization,
        };
        if rate <= 0.0 || utilization <= 0.0 {
            return;
        }
        utilization += report.errors_per_second / rate * settings.error_utilization_penalty;
        let weight = rate / utilization;
        if weight.is_finite() && weight > 0.0 {
            self.weight = weight;
            self.updated_at = now;
            self.reports_since.get_or_insert(now);
        }
    }

    /// The backend was connected anew: what it reports counts after the blackout period.
    pub fn handle_connected(&mut self) {
        self.reports_since = None;
    }

    /// The weight that counts now; 0: none does.
    pub fn current(&mut self, now: u64, settings: &Weighting) -> f64 {
        let Some(since) = self.reports_since else {
            return 0.0;
        };
        if now.saturating_sub(self.updated_at) >= settings.expiration_ns {
            self.reports_since = None;
            return 0.0;
        }
        match now.saturating_sub(since) < settings.blackout_ns {
            true => 0.0,
            false => self.weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn report(rate: f64, cpu: f64) -> LoadReport {
        LoadReport {
            requests_per_second: rate,
            cpu_utilization: cpu,
            ..LoadReport::default()
        }
    }

    #[test]
    fn a_weight_is_the_rate_at_full_use_less_a_penalty_for_errors() {
        let settings = Weighting::default();
        let weight_of = |report: LoadReport| {
            let mut weight = Weight::default();
            weight.handle_report(0, &report, &settings);
            weight.current(settings.blackout_ns, &settings)
        };
        assert_eq!(weight_of(report(1000.0, 0.5)), 2000.0);
        let failing = LoadReport {
            errors_per_second: 500.0,
            ..report(1000.0, 0.5)
        };
        assert_eq!(weight_of(failing), 1000.0);
        let by_application = LoadReport {
            application_utilization: 0.25,
            ..report(1000.0, 0.5)
        };
        assert_eq!(weight_of(by_application), 4000.0);
        for nothing in [report(0.0, 0.5), report(1000.0, 0.0)] {
            assert_eq!(weight_of(nothing), 0.0);
        }
    }

    #[test]
    fn a_weight_counts_after_the_blackout_and_until_it_expires() {
        let settings = Weighting::default();
        let mut weight = Weight::default();
        assert_eq!(weight.current(0, &settings), 0.0);
        for second in 0..=10 {
            weight.handle_report(second * SECOND, &report(10.0, 1.0), &settings);
            let expected = if second < 10 { 0.0 } else { 10.0 };
            assert_eq!(weight.current(second * SECOND, &settings), expected);
        }
        assert_eq!(weight.current((10 + 179) * SECOND, &settings), 10.0);
        assert_eq!(weight.current((10 + 180) * SECOND, &settings), 0.0);
        // Then the blackout begins anew.
        weight.handle_report(200 * SECOND, &report(10.0, 1.0), &settings);
        assert_eq!(weight.current(209 * SECOND, &settings), 0.0);
        assert_eq!(weight.current(210 * SECOND, &settings), 10.0);
        weight.handle_connected();
        assert_eq!(weight.current(210 * SECOND, &settings), 0.0);
    }
}
