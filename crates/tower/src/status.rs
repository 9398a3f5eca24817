//! The statuses that errors of layers become.

use std::error::Error;

use starling::Status;
use tower::BoxError;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;

/// The first of an error and its sources that says what status it is.
pub(crate) fn status_of(error: BoxError) -> Status {
    let error = match error.downcast::<Status>() {
        Ok(status) => return *status,
        Err(error) => error,
    };
    let mut next: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(cause) = next {
        if let Some(status) = cause.downcast_ref::<Status>() {
            return status.clone();
        }
        if cause.is::<Elapsed>() {
            return Status::deadline_exceeded(
                "a timeout of a layer passed before the response came",
            );
        }
        if cause.is::<Overloaded>() {
            return Status::resource_exhausted(
                "a layer sheds load: too many calls are under way; call less often",
            );
        }
        next = cause.source();
    }
    Status::unknown(format!("a layer failed: {error}"))
}

#[cfg(test)]
mod tests {
    use starling::Code;

    use super::*;

    #[derive(Debug)]
    struct Around(Option<BoxError>);

    impl std::fmt::Display for Around {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("around")
        }
    }

    impl Error for Around {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&**self.0.as_ref()?)
        }
    }

    #[test]
    fn statuses_pass_and_known_errors_have_their_codes_however_deep_they_are() {
        let around =
            |error: BoxError| status_of(Box::new(Around(Some(Box::new(Around(Some(error)))))));
        let own = Status::not_found("no key").with_not_run();
        assert_eq!(status_of(own.clone().into()), own);
        assert_eq!(around(own.clone().into()), own);
        let elapsed = Box::new(Elapsed::new());
        assert_eq!(around(elapsed).code(), Code::DeadlineExceeded);
        let shed = Box::new(Overloaded::new());
        assert_eq!(around(shed).code(), Code::ResourceExhausted);
        let other = status_of(Box::new(Around(None)));
        assert_eq!(other, Status::unknown("a layer failed: around"));
    }
}
