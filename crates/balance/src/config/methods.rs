//! `methodConfig` and `retryThrottling`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::json::{Field, Object};
use super::{Attempts, MAX_NAMES, MethodConfig, ServiceConfigError};
use crate::hedge::HedgingPolicy;
use crate::retry::RetryPolicy;
use crate::throttle::Throttling;

type Result<T> = std::result::Result<T, ServiceConfigError>;

pub(super) fn parse(list: Field) -> Result<HashMap<Box<str>, MethodConfig>> {
    let mut methods: HashMap<Box<str>, MethodConfig> = HashMap::new();
    for entry in list.into_list()? {
        let mut entry = entry.into_object()?;
        let names = entry.take("name");
        let config = parse_method(entry)?;
        for name in names.map(Field::into_list).transpose()?.unwrap_or_default() {
            if methods.len() >= MAX_NAMES {
                return Err(name.wrong(format!("is one too many: {MAX_NAMES} names are read")));
            }
            let (key, twice) = parse_name(name)?;
            match methods.entry(key) {
                Entry::Occupied(_) => return Err(twice),
                Entry::Vacant(place) => {
                    place.insert(config.clone());
                }
            }
        }
    }
    Ok(methods)
}

/// The key of a name, and the error if another entry has the name, too.
fn parse_name(field: Field) -> Result<(Box<str>, ServiceConfigError)> {
    let twice = field.wrong("was named before");
    let lone_method = field.wrong("has a method without a service");
    let malformed = field.wrong("has a slash in a name");
    let mut name = field.into_object()?;
    let mut text = |key| {
        let text = name.take(key).map(Field::into_string).transpose()?;
        Ok(text.unwrap_or_default())
    };
    let (service, method): (String, String) = (text("service")?, text("method")?);
    name.finish()?;
    if service.contains('/') || method.contains('/') {
        return Err(malformed);
    }
    let key = match (service.is_empty(), method.is_empty()) {
        (true, true) => String::new(),
        (true, false) => return Err(lone_method),
        (false, _) => format!("/{service}/{method}"),
    };
    Ok((key.into(), twice))
}

fn parse_method(mut entry: Object) -> Result<MethodConfig> {
    let mut config = MethodConfig {
        timeout: entry
            .take("timeout")
            .map(|it| it.to_duration())
            .transpose()?,
        wait_for_ready: entry
            .take("waitForReady")
            .map(|it| it.to_bool())
            .transpose()?,
        ..MethodConfig::default()
    };
    let mut size = |name| entry.take(name).map(|it| it.to_u32(0)).transpose();
    config.max_request_bytes = size("maxRequestMessageBytes")?;
    config.max_response_bytes = size("maxResponseMessageBytes")?;
    let retry = entry.take("retryPolicy");
    config.attempts = match (retry, entry.take("hedgingPolicy")) {
        (None, None) => Attempts::Once,
        (Some(retry), None) => Attempts::Retry(parse_retry(retry.into_object()?)?),
        (None, Some(hedging)) => Attempts::Hedge(parse_hedging(hedging.into_object()?)?),
        (Some(_), Some(hedging)) => {
            return Err(hedging.wrong("cannot stand beside retryPolicy: take one of them"));
        }
    };
    entry.finish()?;
    Ok(config)
}

fn parse_retry(mut policy: Object) -> Result<RetryPolicy> {
    let max_attempts = policy.require("maxAttempts")?.to_u32(2)?;
    let initial = policy.require("initialBackoff")?.to_positive_duration()?;
    let max = policy.require("maxBackoff")?.to_positive_duration()?;
    let multiplier = policy.require("backoffMultiplier")?;
    let codes = policy.require("retryableStatusCodes")?;
    policy.finish()?;
    let is_positive = multiplier.to_number()? > 0.0;
    if !is_positive {
        return Err(multiplier.wrong("is not a number above 0"));
    }
    let empty = codes.wrong("is empty");
    let codes = codes.into_codes()?;
    if codes.is_empty() {
        return Err(empty);
    }
    Ok(RetryPolicy::default()
        .max_attempts(max_attempts)
        .backoff(initial, max, multiplier.to_number()?)
        .code_set(codes))
}

fn parse_hedging(mut policy: Object) -> Result<HedgingPolicy> {
    let max_attempts = policy.require("maxAttempts")?.to_u32(2)?;
    let delay = policy
        .take("hedgingDelay")
        .map(|it| it.to_duration())
        .transpose()?;
    let codes = policy
        .take("nonFatalStatusCodes")
        .map(Field::into_codes)
        .transpose()?;
    policy.finish()?;
    let hedging = HedgingPolicy::new(max_attempts, delay.unwrap_or_default());
    Ok(hedging.non_fatal_set(codes.unwrap_or_default()))
}

pub(super) fn parse_throttling(field: Field) -> Result<Throttling> {
    let mut throttling = field.into_object()?;
    let max_tokens = throttling.require("maxTokens")?.to_integer(1, 1000)?;
    let ratio = throttling.require("tokenRatio")?;
    throttling.finish()?;
    let wrong = ratio.wrong("is not a number of at least 0.001");
    Throttling::new(max_tokens as u32, ratio.to_number()?).ok_or(wrong)
}
