//! JSON with the path of each value, so that an error can name the field.
//!
//! The rules are those of proto3's JSON: `null` is as if the field were absent, numbers may be strings,
//! durations are seconds with an `s`.

use std::time::Duration;

use serde_json::{Map, Value};
use starling_call::Code;

use super::ServiceConfigError;
use crate::code_set::CodeSet;

/// The longest duration of protobuf, in seconds.
const MAX_DURATION_S: u64 = 315_576_000_000;

type Result<T> = std::result::Result<T, ServiceConfigError>;

/// A value and where it is.
pub(super) struct Field {
    path: String,
    value: Value,
}

/// An object whose fields are taken one by one. Those that are left are unknown.
pub(super) struct Object {
    path: String,
    fields: Map<String, Value>,
}

impl Field {
    pub(super) fn wrong(&self, problem: impl Into<String>) -> ServiceConfigError {
        ServiceConfigError {
            field: self.path.clone(),
            problem: problem.into(),
        }
    }

    pub(super) fn is_not(&self, wanted: &str) -> ServiceConfigError {
        let mut text = self.value.to_string();
        if text.chars().count() > 60 {
            text = text.chars().take(60).collect();
            text.push_str("..");
        }
        self.wrong(format!("{text} is not {wanted}"))
    }

    pub(super) fn into_object(self) -> Result<Object> {
        match self.value {
            Value::Object(fields) => Ok(Object {
                path: self.path,
                fields,
            }),
            _ => Err(self.is_not("an object")),
        }
    }

    pub(super) fn into_list(self) -> Result<Vec<Field>> {
        let Value::Array(values) = self.value else {
            return Err(self.is_not("a list"));
        };
        let path = self.path;
        let fields = values.into_iter().enumerate().map(|(index, value)| Field {
            path: format!("{path}[{index}]"),
            value,
        });
        Ok(fields.collect())
    }

    pub(super) fn into_string(self) -> Result<String> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Err(self.is_not("a string")),
        }
    }

    pub(super) fn to_bool(&self) -> Result<bool> {
        let value = self.value.as_bool();
        value.ok_or_else(|| self.is_not("true or false"))
    }

    /// A whole number from `min` to `max`.
    pub(super) fn to_integer(&self, min: u64, max: u64) -> Result<u64> {
        let number = match &self.value {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number.as_u64().or_else(|| {
                // 1e3 and 4.0 are whole numbers, too.
                let value = number.as_f64().filter(|value| value.fract() == 0.0)?;
                (0.0..1e18).contains(&value).then_some(value as u64)
            }),
            _ => None,
        };
        let range = match max {
            u64::MAX => format!("a whole number from {min} up"),
            _ => format!("a whole number from {min} to {max}"),
        };
        let number = number.filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| self.is_not(&range))
    }

    pub(super) fn to_u32(&self, min: u32) -> Result<u32> {
        let number = self.to_integer(min.into(), u32::MAX.into())?;
        Ok(number as u32)
    }

    pub(super) fn to_percent(&self) -> Result<u32> {
        self.to_integer(0, 100).map(|number| number as u32)
    }

    pub(super) fn to_number(&self) -> Result<f64> {
        let number = match &self.value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| number.is_finite());
        number.ok_or_else(|| self.is_not("a number"))
    }

    /// `"1.5s"`: a decimal with at most nine digits behind the point, not negative.
    pub(super) fn to_duration(&self) -> Result<Duration> {
        let parse = || {
            let seconds = self.value.as_str()?.strip_suffix('s')?;
            let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
            let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let is_fraction = (1..=9).contains(&fraction.len()) && are_digits(fraction);
            if whole.is_empty() || !are_digits(whole) || !is_fraction {
                return None;
            }
            let whole = whole
                .parse()
                .ok()
                .filter(|whole| *whole <= MAX_DURATION_S)?;
            let nanos = fraction.parse::<u32>().ok()? * 10u32.pow(9 - fraction.len() as u32);
            Some(Duration::new(whole, nanos))
        };
        parse().ok_or_else(|| self.is_not("a duration such as \"1.5s\""))
    }

    pub(super) fn to_positive_duration(&self) -> Result<Duration> {
        let duration = self.to_duration()?;
        match duration.is_zero() {
            true => Err(self.is_not("a duration above 0")),
            false => Ok(duration),
        }
    }

    /// A list of status codes, by number or by name.
    pub(super) fn into_codes(self) -> Result<CodeSet> {
        let mut codes = CodeSet::EMPTY;
        for field in self.into_list()? {
            let code = match &field.value {
                Value::String(name) => {
                    let is_meant = |code: &Code| code.name().eq_ignore_ascii_case(name);
                    Code::ALL.into_iter().find(is_meant)
                }
                Value::Number(number) => number
                    .as_u64()
                    .and_then(|number| u8::try_from(number).ok())
                    .and_then(Code::from_u8),
                _ => None,
            };
            let code = code.filter(|code| *code != Code::Ok);
            codes.insert(code.ok_or_else(|| field.is_not("a status code other than OK"))?);
        }
        Ok(codes)
    }
}

impl Object {
    pub(super) fn root(value: Value) -> Result<Self> {
        let path = String::new();
        Field { path, value }.into_object()
    }

    fn path_of(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.to_owned(),
            false => format!("{}.{name}", self.path),
        }
    }

    /// Takes a field. `None`: it is absent or `null`.
    pub(super) fn take(&mut self, name: &str) -> Option<Field> {
        let value = self.fields.remove(name).filter(|value| !value.is_null())?;
        let path = self.path_of(name);
        Some(Field { path, value })
    }

    /// Takes a field that has to be there.
    pub(super) fn require(&mut self, name: &str) -> Result<Field> {
        self.take(name).ok_or_else(|| ServiceConfigError {
            field: self.path_of(name),
            problem: "is missing".to_owned(),
        })
    }

    /// The only field that is left.
    pub(super) fn take_only(mut self) -> Result<(String, Field)> {
        let names: Vec<String> = self.fields.keys().cloned().collect();
        let [name] = &names[..] else {
            return Err(ServiceConfigError {
                field: self.path,
                problem: format!("has {} fields where one is allowed", names.len()),
            });
        };
        let path = self.path_of(name);
        let value = self.fields.remove(name).unwrap_or_default();
        Ok((name.clone(), Field { path, value }))
    }

    /// All fields have been taken, or the rest is unknown.
    pub(super) fn finish(self) -> Result<()> {
        match self.fields.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(ServiceConfigError {
                field: self.path_of(name),
                problem: "is not a field that this version can honour".to_owned(),
            }),
        }
    }
}
