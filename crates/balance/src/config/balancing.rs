//! `loadBalancingConfig`: a policy, and the policies around it that choose among backends.

use super::ServiceConfigError;
use super::json::{Field, Object};
use crate::policy::{
    FailurePercentage, LoadBalancing, OutlierDetection, RingHash, SuccessRate, Weighting,
};

type Result<T> = std::result::Result<T, ServiceConfigError>;

/// The most places of a ring that gRPC lets a config ask for.
const MAX_RING: u64 = 8 << 20;

/// Names that an error quotes.
const QUOTED: usize = 3;

/// The policies that are known, as a config names them.
const KNOWN: &str = "pick_first, round_robin, least_request_experimental, weighted_round_robin, \
                     ring_hash_experimental, outlier_detection_experimental and \
                     random_subsetting_experimental";

/// The older field, which has a name only. `None`: it says nothing.
pub(super) fn parse_name(field: Field) -> Result<Option<LoadBalancing>> {
    let unknown = field.is_not("ROUND_ROBIN or PICK_FIRST: use loadBalancingConfig");
    let name = field.into_string()?;
    match name.to_ascii_lowercase().as_str() {
        "unspecified" | "" => Ok(None),
        "round_robin" => Ok(Some(LoadBalancing::round_robin())),
        "pick_first" => Ok(Some(LoadBalancing::pick_first())),
        _ => Err(unknown),
    }
}

/// The first policy that is known.
pub(super) fn parse(list: Field) -> Result<LoadBalancing> {
    let mut none = list.wrong("");
    let mut unknown = Vec::new();
    for entry in list.into_list()? {
        let (name, field) = entry.into_object()?.take_only()?;
        if let Some(parsed) = parse_policy(&name, field)? {
            return Ok(parsed);
        }
        unknown.push(format!("{name:?}"));
    }
    unknown.truncate(QUOTED);
    let named = match unknown.is_empty() {
        true => String::new(),
        false => format!(", only {}", unknown.join(", ")),
    };
    none.problem = format!("has no policy that this version knows{named}: it knows {KNOWN}");
    Err(none)
}

/// `None`: the policy is not known.
fn parse_policy(name: &str, field: Field) -> Result<Option<LoadBalancing>> {
    let balancing = match name {
        "pick_first" => parse_pick_first(field.into_object()?)?,
        "round_robin" => {
            field.into_object()?.finish()?;
            LoadBalancing::round_robin()
        }
        "least_request_experimental" => parse_least_request(field.into_object()?)?,
        "weighted_round_robin" => parse_weighted(field.into_object()?)?,
        "ring_hash_experimental" => parse_ring(field.into_object()?)?,
        "outlier_detection_experimental" => return parse_outliers(field).map(Some),
        "random_subsetting_experimental" => return parse_subset(field).map(Some),
        _ => return Ok(None),
    };
    Ok(Some(balancing))
}

fn parse_pick_first(mut config: Object) -> Result<LoadBalancing> {
    let shuffle = config
        .take("shuffleAddressList")
        .map(|it| it.to_bool())
        .transpose()?;
    config.finish()?;
    Ok(match shuffle.unwrap_or(false) {
        true => LoadBalancing::pick_first_shuffled(),
        false => LoadBalancing::pick_first(),
    })
}

fn parse_least_request(mut config: Object) -> Result<LoadBalancing> {
    let choices = config
        .take("choiceCount")
        .map(|it| it.to_u32(2))
        .transpose()?;
    config.finish()?;
    Ok(LoadBalancing::least_request_of(choices.unwrap_or(2)))
}

fn parse_weighted(mut config: Object) -> Result<LoadBalancing> {
    if let Some(out_of_band) = config.take("enableOobLoadReport")
        && out_of_band.to_bool()?
    {
        return Err(out_of_band.wrong("cannot be true: load reports come with responses only"));
    }
    let mut duration = |name| config.take(name).map(|it| it.to_duration()).transpose();
    // Of out-of-band reports, which are off.
    duration("oobReportingPeriod")?;
    let mut weighting = Weighting::default();
    if let Some(period) = duration("blackoutPeriod")? {
        weighting = weighting.blackout(period);
    }
    if let Some(period) = duration("weightExpirationPeriod")? {
        weighting = weighting.expiration(period);
    }
    if let Some(period) = duration("weightUpdatePeriod")? {
        weighting = weighting.update(period);
    }
    if let Some(field) = config.take("errorUtilizationPenalty") {
        weighting.error_utilization_penalty = field.to_number()?;
        if weighting.error_utilization_penalty < 0.0 {
            return Err(field.wrong("is negative"));
        }
    }
    config.finish()?;
    Ok(LoadBalancing::weighted_round_robin(weighting))
}

fn parse_ring(mut config: Object) -> Result<LoadBalancing> {
    let header = config.require("requestHashHeader")?;
    let mut size = |name| {
        let size = config.take(name).map(|it| it.to_integer(1, MAX_RING));
        size.transpose().map(|size| size.map(|size| size as usize))
    };
    let (min, max) = (size("minRingSize")?, size("maxRingSize")?);
    config.finish()?;
    let max = max.unwrap_or(RingHash::MAX_SIZE);
    let min_wanted = min.unwrap_or(1024.min(max));
    if min_wanted > max {
        return Err(header.wrong(format!(
            "is on a ring whose minRingSize, {min_wanted}, is above its maxRingSize, {max}"
        )));
    }
    let (binary, malformed) = (
        header.wrong("names binary metadata (-bin), whose values are not hashed"),
        header.wrong("is not a key of metadata: 1 to 255 characters of a-z, 0-9, '-', '_' and '.'"),
    );
    let key = header.into_string()?.to_ascii_lowercase();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=255).contains(&key.len()) || !key.bytes().all(is_allowed) {
        return Err(malformed);
    }
    if key.ends_with("-bin") {
        return Err(binary);
    }
    let ring = RingHash::by_metadata(key).size(min_wanted, max);
    Ok(LoadBalancing::ring_hash(ring))
}

fn parse_outliers(field: Field) -> Result<LoadBalancing> {
    let twice = field.wrong("is inside another one");
    let mut config = field.into_object()?;
    let mut child = parse(config.require("childPolicy")?)?;
    let mut settings = OutlierDetection::default();
    let mut duration = |name| config.take(name).map(|it| it.to_duration()).transpose();
    if let Some(interval) = duration("interval")? {
        settings = settings.interval(interval);
    }
    let base = duration("baseEjectionTime")?;
    settings.base_ejection_ns = base.map_or(settings.base_ejection_ns, crate::policy::nanos);
    settings.max_ejection_ns = duration("maxEjectionTime")?.map(crate::policy::nanos);
    if let Some(percent) = config.take("maxEjectionPercent") {
        settings = settings.max_ejection_percent(percent.to_percent()?);
    }
    if let Some(criterion) = config.take("successRateEjection") {
        settings = settings.by_success_rate(parse_success_rate(criterion.into_object()?)?);
    }
    if let Some(criterion) = config.take("failurePercentageEjection") {
        settings = settings.by_failure_percentage(parse_failures(criterion.into_object()?)?);
    }
    config.finish()?;
    match child.outliers.replace(settings) {
        None => Ok(child),
        Some(_) => Err(twice),
    }
}

fn parse_success_rate(mut config: Object) -> Result<SuccessRate> {
    let unset = SuccessRate::default();
    let mut number = |name, unset| config.take(name).map_or(Ok(unset), |it| it.to_u32(0));
    let stdev_factor = number("stdevFactor", unset.stdev_factor)?;
    let minimum_hosts = number("minimumHosts", unset.minimum_hosts)?;
    let request_volume = number("requestVolume", unset.request_volume)?;
    let enforcement = config.take("enforcementPercentage");
    config.finish()?;
    Ok(SuccessRate {
        stdev_factor,
        enforcement_percentage: enforcement.map_or(Ok(100), |it| it.to_percent())?,
        minimum_hosts,
        request_volume,
    })
}

fn parse_failures(mut config: Object) -> Result<FailurePercentage> {
    let unset = FailurePercentage::default();
    let mut number = |name, unset| config.take(name).map_or(Ok(unset), |it| it.to_u32(0));
    let minimum_hosts = number("minimumHosts", unset.minimum_hosts)?;
    let request_volume = number("requestVolume", unset.request_volume)?;
    let threshold = config.take("threshold");
    let enforcement = config.take("enforcementPercentage");
    config.finish()?;
    Ok(FailurePercentage {
        threshold: threshold.map_or(Ok(unset.threshold), |it| it.to_percent())?,
        enforcement_percentage: enforcement.map_or(Ok(100), |it| it.to_percent())?,
        minimum_hosts,
        request_volume,
    })
}

fn parse_subset(field: Field) -> Result<LoadBalancing> {
    let twice = field.wrong("is inside another one");
    let mut config = field.into_object()?;
    let size = config.require("subsetSize")?.to_u32(1)?;
    let mut child = parse(config.require("childPolicy")?)?;
    config.finish()?;
    match child.subset.replace(size) {
        None => Ok(child),
        Some(_) => Err(twice),
    }
}
