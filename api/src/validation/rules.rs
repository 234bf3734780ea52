//! Rules of single fields, for the attributes of garde.

// The signatures are garde's.
#![allow(clippy::trivially_copy_pass_by_ref, clippy::ref_option)]

use crate::validation::metadata;
use crate::{GoDuration, ParseGoDurationError};
use garde::Error;

type Result = garde::Result;

pub(crate) fn not_empty(text: &str, (): &()) -> Result {
    if text.is_empty() { Err(Error::new("must not be empty")) } else { Ok(()) }
}

pub(crate) fn object_name(text: &str, context: &()) -> Result {
    not_empty(text, context)?;
    if metadata::is_object_name(text) { Ok(()) } else { Err(Error::new(metadata::OBJECT_NAME)) }
}

/// An optional duration that must not be negative, nor too long for Go.
pub(crate) fn not_negative_duration(duration: &Option<GoDuration>, (): &()) -> Result {
    if duration.is_some_and(GoDuration::is_negative) {
        return Err(Error::new("must not be negative"));
    }
    if duration.is_some_and(GoDuration::is_longest) {
        return Err(Error::new(ParseGoDurationError::TooLong));
    }
    Ok(())
}

/// An optional timeout. One of zero would be over before it begins.
pub(crate) fn positive_duration(duration: &Option<GoDuration>, context: &()) -> Result {
    not_negative_duration(duration, context)?;
    if *duration == Some(GoDuration::ZERO) { Err(Error::new("must be greater than 0s")) } else { Ok(()) }
}

pub(crate) fn condition_types(text: &Option<String>, (): &()) -> Result {
    let mut types = text.iter().flat_map(|text| text.split(',')).map(str::trim);
    let is_list = types.all(|name| name.is_empty() || metadata::is_qualified_name(name));
    if is_list { Ok(()) } else { Err(Error::new("must be types of node conditions, separated by commas")) }
}
