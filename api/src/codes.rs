//! The codes with which a driver says how a call ended.

use std::fmt;
use std::str::FromStr;

/// How a driver's call ended: gRPC's codes, and one more.
///
/// The name is what stands in `lastOperation.errorCode`, and is part of the contract with the cluster
/// autoscaler and with Gardener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Code {
    /// The call was successful.
    Ok = 0,
    /// The caller gave up.
    Canceled = 1,
    /// An error without a better code.
    Unknown = 2,
    /// What was asked for is wrong, whatever the state of the provider.
    InvalidArgument = 3,
    /// The call took too long; it may have had an effect.
    DeadlineExceeded = 4,
    /// There is no such instance.
    NotFound = 5,
    /// There is one already, and it is another.
    AlreadyExists = 6,
    /// The credentials do not allow it.
    PermissionDenied = 7,
    /// No capacity, or a quota is used up. The autoscaler tries another group.
    ResourceExhausted = 8,
    /// The provider is not in a state for it, and trying again does not help by itself.
    FailedPrecondition = 9,
    /// A conflict with another call.
    Aborted = 10,
    /// Beyond what is valid. Of a listing: there may be instances that nobody knows of.
    OutOfRange = 11,
    /// The driver does not have the call.
    Unimplemented = 12,
    /// The driver or the provider is broken.
    Internal = 13,
    /// The provider cannot be reached; trying again may help.
    Unavailable = 14,
    /// Data were lost.
    DataLoss = 15,
    /// The credentials are not valid.
    Unauthenticated = 16,
    /// The instance exists, but has not been initialised.
    Uninitialized = 17,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::Ok,
        Self::Canceled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
        Self::Uninitialized,
    ];

    /// The number on the wire between controller and driver.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The name, as it stands in `lastOperation.errorCode`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Canceled => "Canceled",
            Self::Unknown => "Unknown",
            Self::InvalidArgument => "InvalidArgument",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::PermissionDenied => "PermissionDenied",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Aborted => "Aborted",
            Self::OutOfRange => "OutOfRange",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::DataLoss => "DataLoss",
            Self::Unauthenticated => "Unauthenticated",
            Self::Uninitialized => "Uninitialized",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text is not the name of a [`Code`], or a number is not that of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no machine code is named {0:?}")]
pub struct UnknownCodeError(String);

impl FromStr for Code {
    type Err = UnknownCodeError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|code| code.name() == name).ok_or_else(|| UnknownCodeError(name.to_owned()))
    }
}

impl TryFrom<u32> for Code {
    type Error = UnknownCodeError;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        Self::ALL.into_iter().find(|code| code.number() == number).ok_or_else(|| UnknownCodeError(number.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back() {
        for (position, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(code.number()), Ok(position));
            assert_eq!(code.name().parse(), Ok(code));
            assert_eq!(Code::try_from(code.number()), Ok(code));
        }
        assert!("ok".parse::<Code>().is_err());
        assert!(Code::try_from(18).is_err());
    }
}
