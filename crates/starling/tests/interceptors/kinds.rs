//! The interceptors of these tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling::{InterceptedCall, InterceptedResponse, Interceptor, Next, Side, Status};
use starling_test_protos::test::Payload;

use crate::common::payload;

type Outcome = Result<InterceptedResponse, Status>;

pub(crate) const TOKEN: &str = "open sesame";

pub(crate) struct Token(pub(crate) &'static str);

impl Interceptor for Token {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        assert_eq!(call.side(), Side::Client);
        let added = call.metadata_mut().insert("token", self.0);
        added.map_err(|error| Status::invalid_argument(error.to_string()))?;
        next.run(call).await
    }
}

pub(crate) struct TokenCheck;

impl Interceptor for TokenCheck {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        assert_eq!(call.side(), Side::Server);
        match call.metadata().value("token") {
            Some(token) if token == TOKEN.as_bytes() => next.run(call).await,
            _ => Err(Status::unauthenticated("no token, or a wrong one")),
        }
    }
}

/// Writes down what it sees, in the call's metadata and response, too.
pub(crate) struct Writes(pub(crate) &'static str, pub(crate) Arc<Mutex<Vec<String>>>);

impl Interceptor for Writes {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        let Self(name, log) = self;
        log.lock().push((*name).to_owned());
        let mut result = next.run(call).await;
        let end = match &result {
            Ok(_) => "ok".to_owned(),
            Err(status) => format!("{:?}", status.code()),
        };
        log.lock().push(format!("{name} {end}"));
        if let Ok(response) = &mut result {
            let mut seen = response
                .metadata()
                .value("seen")
                .unwrap_or_default()
                .to_vec();
            seen.extend_from_slice(name.as_bytes());
            *response.metadata_mut() = Default::default();
            response
                .metadata_mut()
                .insert("seen", seen)
                .expect("a short value");
        }
        result
    }
}

/// What was written down since it was asked for last.
pub(crate) fn logged(log: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut log.lock())
}

/// Changes everything: adds 1 to each byte of payloads.
pub(crate) struct Rewrites;

fn plus_one(message: &Payload) -> Payload {
    let bytes = message.bytes().iter().map(|byte| byte + 1);
    payload(&bytes.collect::<Vec<_>>())
}

impl Interceptor for Rewrites {
    async fn intercept(&self, mut call: InterceptedCall, next: Next<'_>) -> Outcome {
        call.set_message(&plus_one(&call.message()?))?;
        call.metadata_mut()
            .insert("who", "interceptor")
            .expect("a key");
        let deadline = Instant::now() + Duration::from_secs(7);
        call.set_deadline(Some(deadline));
        let is_inspect = call.path().ends_with("/Inspect");
        let mut response = next.run(call).await?;
        if !is_inspect {
            response.set_message(&plus_one(&response.message()?));
            response
                .metadata_mut()
                .insert("who", "interceptor")
                .expect("a key");
        }
        Ok(response)
    }
}

pub(crate) struct Answers(pub(crate) Payload);

impl Interceptor for Answers {
    async fn intercept(&self, _: InterceptedCall, _: Next<'_>) -> Outcome {
        Ok(InterceptedResponse::new(&self.0))
    }
}

pub(crate) struct Repeats;

impl Interceptor for Repeats {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        next.run(call.clone()).await?;
        next.run(call).await
    }
}

pub(crate) struct Counts(pub(crate) Arc<AtomicUsize>);

impl Interceptor for Counts {
    async fn intercept(&self, call: InterceptedCall, next: Next<'_>) -> Outcome {
        self.0.fetch_add(1, Ordering::SeqCst);
        next.run(call).await
    }
}

pub(crate) struct Never;

impl Interceptor for Never {
    async fn intercept(&self, _: InterceptedCall, _: Next<'_>) -> Outcome {
        std::future::pending().await
    }
}

pub(crate) struct Panics;

impl Interceptor for Panics {
    async fn intercept(&self, _: InterceptedCall, _: Next<'_>) -> Outcome {
        std::panic::resume_unwind(Box::new("as requested"));
    }
}
