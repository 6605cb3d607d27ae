/*
 * utracefs: user_events for programs in C++17.
 *
 *     #include <utracefs.hpp>
 *
 *     static utracefs::event http_request{"http_request", utracefs::u16{"status"}, utracefs::u64{"bytes"},
 *                                         utracefs::string{"path"}};
 *
 *     http_request.emit(200, 1834, request.path());
 *
 * declares an event that tools see as `user_events:http_request`, and writes a record of it if a consumer is
 * attached. utracefs.h has the guarantees. The compiler checks the number of arguments and their types:
 *
 *     field                                kernel's type       argument
 *     u8{"name"} ... u64, s8 ... s64       u8 ... s64          integer, bool, enumeration; out of range:
 *                                                              refused and counted
 *     f64{"name"}, f32{"name"}             struct double, float  number; too large for float: likewise
 *     boolean{"name"}                      struct bool         bool
 *     string{"name"}                       __rel_loc char[]    converts to std::string_view, or nullptr
 *     bytes{"name"}                        __rel_loc u8[]      with data() and size()
 *     chars<16>{"name"}                    char[16]            as string; cut to 15 bytes and NUL
 *     structure<T>{"name", "tag"}          struct tag          T, copied byte by byte
 *     array<u32, 4>{"name"}                struct u32_4        std::array or C array of 4 std::uint32_t;
 *                                                              also of u8 ... s64, f64, f32, boolean
 *
 * Arguments are always evaluated; if that is expensive, write `if (http_request) http_request.emit(...)`. An
 * event lives as long as the program or library that contains it: make it a static variable, in a header
 * `inline`.
 */
#ifndef UTRACEFS_HPP
#define UTRACEFS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "utracefs.h"

namespace utracefs {

namespace detail {

/* The command string, built piece by piece; at most 511 bytes, the kernel's limit. */
struct text {
	char data[512] = {};
	std::size_t size = 0;
	bool fits = true;

	template <typename... Parts> constexpr void put(const Parts &...parts)
	{
		(add(parts), ...);
	}

	constexpr void add(std::string_view more)
	{
		for (char c : more) {
			if (size == sizeof(data) - 1) {
				fits = false;
				return;
			}
			data[size++] = c;
		}
	}

	constexpr void add(std::size_t number)
	{
		char digits[20] = {};
		int n = 0;

		do
			digits[n++] = static_cast<char>('0' + number % 10);
		while (number /= 10);
		while (n)
			add(std::string_view(&digits[--n], 1));
	}
};

/* Next positions for fixed fields and for dynamic data of a record. */
struct writer {
	unsigned char *at;
	unsigned char *data;
};

template <typename Argument, typename = void> struct is_bytes : std::false_type {};
template <typename Argument>
struct is_bytes<Argument, std::void_t<decltype(std::declval<const Argument &>().data()),
				      decltype(std::declval<const Argument &>().size())>>
    : std::bool_constant<sizeof(*std::declval<const Argument &>().data()) == 1> {};

inline std::string_view view_of(const char *text)
{
	return text ? std::string_view(text) : std::string_view();
}

inline std::string_view view_of(std::string_view text)
{
	return text;
}

template <typename Argument> constexpr bool is_text()
{
	return std::is_null_pointer_v<std::decay_t<Argument>> ||
	       std::is_convertible_v<const Argument &, std::string_view>;
}

/* Base of all fields: a name, `Fixed` bytes in the record; by default no dynamic data, and room for each
 * value of the type. */
template <std::size_t Fixed> struct field {
	static constexpr std::size_t fixed = Fixed;
	const char *name;

	constexpr explicit field(const char *given) : name(given) {}

	template <typename Argument> static std::size_t dynamic(const Argument &)
	{
		return 0;
	}

	template <typename Argument> static constexpr bool fits(const Argument &)
	{
		return true;
	}
};

} // namespace detail

template <typename Integer> struct integer : detail::field<sizeof(Integer)> {
	using detail::field<sizeof(Integer)>::field;
	using value_type = Integer;

	/* Whether the field can hold it: the conversion there and back gives the same number of the same
	 * sign. */
	template <typename Argument> static constexpr bool fits(const Argument &value)
	{
		if constexpr (std::is_enum_v<Argument>) {
			return fits(static_cast<std::underlying_type_t<Argument>>(value));
		} else {
			const Integer narrow = static_cast<Integer>(value);

			return static_cast<Argument>(narrow) == value && (narrow < Integer(0)) == (value < Argument(0));
		}
	}

	template <typename Argument> static constexpr bool takes()
	{
		return std::is_integral_v<Argument> || std::is_enum_v<Argument>;
	}

	static constexpr void put_type(detail::text &text)
	{
		text.put(std::is_signed_v<Integer> ? "s" : "u", 8 * sizeof(Integer));
	}

	constexpr void declare(detail::text &text) const
	{
		put_type(text);
		text.put(" ", this->name);
	}

	template <typename Argument> static void put(detail::writer &to, const Argument &value, std::size_t)
	{
		const std::uint64_t bits = static_cast<std::uint64_t>(static_cast<Integer>(value));

		if constexpr (sizeof(Integer) == 1)
			utracefs_put_u8(&to.at, bits);
		else if constexpr (sizeof(Integer) == 2)
			utracefs_put_u16(&to.at, bits);
		else if constexpr (sizeof(Integer) == 4)
			utracefs_put_u32(&to.at, bits);
		else
			utracefs_put_u64(&to.at, bits);
	}
};

using u8 = integer<std::uint8_t>;
using u16 = integer<std::uint16_t>;
using u32 = integer<std::uint32_t>;
using u64 = integer<std::uint64_t>;
using s8 = integer<std::int8_t>;
using s16 = integer<std::int16_t>;
using s32 = integer<std::int32_t>;
using s64 = integer<std::int64_t>;

template <typename Real> struct real : detail::field<sizeof(Real)> {
	using detail::field<sizeof(Real)>::field;
	using value_type = Real;

	/* Whether the number is in the field's range; NaN and the infinities are. */
	template <typename Argument> static constexpr bool fits(const Argument &value)
	{
		const long double most = std::numeric_limits<Real>::max(), wide = static_cast<long double>(value);

		return !(wide > most || wide < -most) || wide - wide != 0;
	}

	template <typename Argument> static constexpr bool takes()
	{
		return std::is_arithmetic_v<Argument>;
	}

	static constexpr void put_type(detail::text &text)
	{
		text.put(sizeof(Real) == 8 ? "double" : "float");
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("struct ");
		put_type(text);
		text.put(" ", this->name, " ", sizeof(Real));
	}

	template <typename Argument> static void put(detail::writer &to, const Argument &value, std::size_t)
	{
		if constexpr (sizeof(Real) == 8)
			utracefs_put_double(&to.at, static_cast<double>(value));
		else
			utracefs_put_float(&to.at, static_cast<float>(value));
	}
};

using f32 = real<float>;
using f64 = real<double>;

struct boolean : detail::field<1> {
	using field::field;
	using value_type = bool;

	template <typename Argument> static constexpr bool takes()
	{
		return std::is_same_v<Argument, bool>;
	}

	static constexpr void put_type(detail::text &text)
	{
		text.put("bool");
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("struct bool ", name, " 1");
	}

	static void put(detail::writer &to, bool value, std::size_t)
	{
		utracefs_put_u8(&to.at, value);
	}
};

struct string : detail::field<4> {
	using field::field;

	template <typename Argument> static constexpr bool takes()
	{
		return detail::is_text<Argument>();
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("__rel_loc char[] ", name);
	}

	template <typename Argument> static std::size_t dynamic(const Argument &value)
	{
		const std::size_t size = detail::view_of(value).size();

		return (size < UTRACEFS_MAX_DYNAMIC ? size : UTRACEFS_MAX_DYNAMIC - 1) + 1;
	}

	template <typename Argument> static void put(detail::writer &to, const Argument &value, std::size_t size)
	{
		utracefs_put_u32(&to.at, static_cast<std::uint64_t>(size) << 16 |
						 static_cast<std::uint64_t>(to.data - (to.at + 4)));
		if (size > 1)
			std::memcpy(to.data, detail::view_of(value).data(), size - 1);
		to.data += size;
		to.data[-1] = 0;
	}
};

struct bytes : detail::field<4> {
	using field::field;

	template <typename Argument> static constexpr bool takes()
	{
		return std::is_same_v<Argument, struct utracefs_bytes> || detail::is_bytes<Argument>::value;
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("__rel_loc u8[] ", name);
	}

	static struct utracefs_bytes bytes_of(const struct utracefs_bytes &value)
	{
		return value;
	}

	template <typename Argument> static struct utracefs_bytes bytes_of(const Argument &value)
	{
		return utracefs_bytes(value.data(), value.size());
	}

	template <typename Argument> static std::size_t dynamic(const Argument &value)
	{
		const std::size_t size = bytes_of(value).size;

		return size < UTRACEFS_MAX_DYNAMIC ? size : UTRACEFS_MAX_DYNAMIC;
	}

	template <typename Argument> static void put(detail::writer &to, const Argument &value, std::size_t size)
	{
		utracefs_put_rel(&to.at, &to.data, bytes_of(value).data, size);
	}
};

template <std::size_t Size> struct chars : detail::field<Size> {
	using detail::field<Size>::field;
	static_assert(Size >= 1 && Size <= 1024, "char[N]: N is 1 to 1024");

	template <typename Argument> static constexpr bool takes()
	{
		return detail::is_text<Argument>();
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("char[", Size, "] ", this->name);
	}

	template <typename Argument> static void put(detail::writer &to, const Argument &value, std::size_t)
	{
		const std::string_view view = detail::view_of(value);
		const std::size_t length = view.size() < Size ? view.size() : Size - 1;

		if (length)
			std::memcpy(to.at, view.data(), length);
		std::memset(to.at + length, 0, Size - length);
		to.at += Size;
	}
};

template <typename Type> struct structure : detail::field<sizeof(Type)> {
	static_assert(std::is_trivially_copyable_v<Type>, "a struct field is copied byte by byte");
	const char *tag;

	constexpr structure(const char *given, const char *kind) : detail::field<sizeof(Type)>(given), tag(kind) {}

	template <typename Argument> static constexpr bool takes()
	{
		return std::is_same_v<Argument, Type>;
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("struct ", tag, " ", this->name, " ", sizeof(Type));
	}

	static void put(detail::writer &to, const Type &value, std::size_t)
	{
		utracefs_put_struct(&to.at, &value, sizeof(value));
	}
};

template <typename Element, std::size_t Count>
struct array : detail::field<Count * sizeof(typename Element::value_type)> {
	using base = detail::field<Count * sizeof(typename Element::value_type)>;
	using base::base, base::fixed;
	using value_type = typename Element::value_type;
	static_assert(Count >= 1, "an array has an element");

	/* A C array is a pointer here; `put` checks its size. */
	template <typename Argument> static constexpr bool takes()
	{
		if constexpr (std::is_pointer_v<Argument>)
			return std::is_same_v<std::remove_cv_t<std::remove_pointer_t<Argument>>, value_type>;
		else
			return std::is_same_v<Argument, std::array<value_type, Count>>;
	}

	constexpr void declare(detail::text &text) const
	{
		text.put("struct ");
		Element::put_type(text);
		text.put("_", Count, " ", this->name, " ", fixed);
	}

	template <typename Argument> static void put(detail::writer &to, const Argument &value, std::size_t)
	{
		static_assert(!std::is_pointer_v<Argument> && sizeof(value) == fixed, "an array of another size");
		utracefs_put_struct(&to.at, &value, fixed);
	}
};

/* The command string of an event, also as a constant expression. */
template <typename... Fields> constexpr detail::text command(std::string_view name, const Fields &...fields)
{
	detail::text text;
	bool first = true;

	text.put(name);
	((text.put(first ? " " : "; "), first = false, fields.declare(text)), ...);
	return text;
}

template <typename... Fields> class event {
public:
	explicit event(const char *name, Fields... fields) : event(0u, name, fields...) {}

	/* flags: UTRACEFS_PERSIST, UTRACEFS_MULTI_FORMAT. */
	event(unsigned flags, const char *name, Fields... fields)
	    : text_(utracefs::command(name, fields...)), names_{fields.name..., nullptr}, event_()
	{
		event_.state = &off_;
		event_.command = text_.data;
		event_.flags = flags;
		if (text_.fits)
			utracefs_attach(&event_);
	}

	~event()
	{
		utracefs_detach(&event_);
	}

	event(const event &) = delete;
	event &operator=(const event &) = delete;

	/* utracefs_enabled of utracefs.h. */
	explicit operator bool() const noexcept
	{
		return utracefs_enabled(&event_) != 0;
	}

	template <typename... Arguments> void emit(const Arguments &...arguments) noexcept
	{
		static_assert(sizeof...(Arguments) == sizeof...(Fields), "an argument for each field of the event");
		if constexpr (sizeof...(Arguments) == sizeof...(Fields)) {
			static_assert((Fields::template takes<std::decay_t<const Arguments>>() && ...),
				      "an argument is not of its field's type");
			if (__builtin_expect(utracefs_enabled(&event_) != 0, 0))
				write(std::index_sequence_for<Fields...>(), arguments...);
		}
	}

	const char *declaration() const noexcept
	{
		return text_.data;
	}

	/* For utracefs_event_error and the other functions of utracefs.h. */
	const struct utracefs_event *get() const noexcept
	{
		return &event_;
	}

private:
	static constexpr std::size_t fixed = (std::size_t(0) + ... + Fields::fixed);
	static constexpr unsigned char off_ = 0;

	template <std::size_t... I, typename... Arguments>
	__attribute__((noinline)) void write(std::index_sequence<I...>, const Arguments &...arguments) noexcept
	{
		const std::size_t sizes[sizeof...(Fields) + 1] = {Fields::dynamic(arguments)..., 0};
		const bool fit[sizeof...(Fields) + 1] = {Fields::fits(arguments)..., true};
		struct utracefs_reserved reserved;

		for (std::size_t i = 0; i < sizeof...(Fields); i++)
			if (!fit[i])
				return utracefs_refuse(&event_, names_[i], "was out of range");
		if (!utracefs_reserve(&event_, (fixed + ... + sizes[I]), &reserved))
			return;
		detail::writer to{reserved.payload, reserved.payload + fixed};
		(Fields::put(to, arguments, sizes[I]), ...);
		(void)to;
		utracefs_commit(&reserved);
	}

	detail::text text_;
	const char *names_[sizeof...(Fields) + 1];
	struct utracefs_event event_;
};

/* event{"name", u32{"a"}} deduces the fields. */
template <typename... Fields> event(const char *, Fields...) -> event<Fields...>;
template <typename... Fields> event(unsigned, const char *, Fields...) -> event<Fields...>;

/* A span, from `spans::operator()` to the end of its block. Off it is empty. */
class span {
public:
	span() noexcept : span_{0, 0, 0, nullptr, nullptr}, exceptions_(0) {}
	explicit span(struct utracefs_span begun) noexcept : span_(begun), exceptions_(std::uncaught_exceptions()) {}

	/* If an exception ends it, its error is "exception" by default. */
	~span()
	{
		if (span_.id && !span_.error && std::uncaught_exceptions() > exceptions_)
			span_.error = "exception";
		utracefs_span_end(&span_);
	}

	span(const span &) = delete;
	span &operator=(const span &) = delete;

	/* text: lives as long as the span. */
	void error(const char *text) noexcept
	{
		span_.error = text;
	}

	std::uint64_t id() const noexcept
	{
		return span_.id;
	}

private:
	struct utracefs_span span_;
	int exceptions_;
};

/*
 * The events NAME_begin and NAME_end, as UTRACEFS_SPANS in C:
 *
 *     static utracefs::spans order{"order", utracefs::u64{"id"}};
 *
 *     auto running = order(7);
 */
template <typename... Fields> class spans {
public:
	explicit spans(const char *name, Fields... fields)
	    : begin_((std::string(name) + "_begin").c_str(), u64{"span_id"}, u64{"parent_id"}, fields...),
	      end_((std::string(name) + "_end").c_str(), u64{"span_id"}, u64{"parent_id"}, u64{"duration_ns"},
		   string{"error"})
	{
	}

	/* Whether one of the events is on. */
	explicit operator bool() const noexcept
	{
		return begin_ || end_;
	}

	template <typename... Arguments> [[nodiscard]] span operator()(const Arguments &...arguments) noexcept
	{
		if (__builtin_expect(!utracefs_enabled(begin_.get()) && !utracefs_enabled(end_.get()), 1))
			return span();
		struct utracefs_span begun = utracefs_span_begin(const_cast<struct utracefs_event *>(end_.get()));
		begin_.emit(begun.id, begun.parent_id, arguments...);
		return span(begun);
	}

private:
	event<u64, u64, Fields...> begin_;
	event<u64, u64, u64, string> end_;
};

template <typename... Fields> spans(const char *, Fields...) -> spans<Fields...>;

} // namespace utracefs

#endif
