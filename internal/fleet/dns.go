package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Resolver looks up names; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

func defaultResolver() Resolver { return net.DefaultResolver }

const (
	dnsRefresh = 10 * time.Second
	dnsTimeout = 5 * time.Second
	dnsRetry   = time.Second // after a failure; doubles up to the refresh
)

// followDNS looks the name up at once and again and again. After a failure it
// looks sooner, at first.
func (f *Fleet) followDNS(ctx context.Context, s *source) {
	refresh := cmp.Or(s.dns.Refresh, dnsRefresh)
	retry := min(dnsRetry, refresh)
	for {
		list, err := f.lookup(ctx, s.dns)
		f.report(ctx, s, list, err)
		wait := refresh
		if err != nil {
			wait = retry
			retry = min(2*retry, refresh)
		} else {
			retry = min(dnsRetry, refresh)
		}
		if !sleep(ctx, jitter(wait)) {
			return
		}
	}
}

// lookup returns the instances that the name stands for, in a fixed order.
func (f *Fleet) lookup(ctx context.Context, d DNSConfig) ([]InstanceConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	find := f.lookupAddr
	if d.isSRV() {
		find = f.lookupSRV
	}
	hosts, err := find(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", d.Name, err)
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("look up %s: %w", d.Name, errNobody)
	}
	slices.Sort(hosts)
	list := make([]InstanceConfig, 0, len(hosts))
	for _, h := range slices.Compact(hosts) {
		list = append(list, InstanceConfig{URL: cmp.Or(d.Scheme, "http") + "://" + h})
	}
	return list, nil
}

// lookupAddr returns host:port for each A record. AAAA records count only where
// there are no others: a machine with both has one cache, not two.
func (f *Fleet) lookupAddr(ctx context.Context, d DNSConfig) ([]string, error) {
	for _, network := range []string{"ip4", "ip6"} {
		addrs, err := f.deps.Resolver.LookupNetIP(ctx, network, d.Name)
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		var hosts []string
		for _, a := range addrs {
			hosts = append(hosts, netip.AddrPortFrom(a.Unmap(), uint16(d.Port)).String()) //nolint:gosec // Validate bounds the port
		}
		if len(hosts) > 0 {
			return hosts, nil
		}
	}
	return nil, nil
}

// isNotFound reports whether the name, or that kind of record of it, is missing.
func isNotFound(err error) bool {
	if de, ok := errors.AsType[*net.DNSError](err); ok {
		return de.IsNotFound
	}
	_, ok := errors.AsType[*net.AddrError](err) // "no suitable address"
	return ok
}

// lookupSRV returns target:port for each record of the best priority.
func (f *Fleet) lookupSRV(ctx context.Context, d DNSConfig) ([]string, error) {
	_, records, err := f.deps.Resolver.LookupSRV(ctx, "", "", d.Name)
	if err != nil && !isNotFound(err) {
		return nil, err
	}
	best := uint16(0xffff)
	for _, r := range records {
		best = min(best, r.Priority)
	}
	var hosts []string
	for _, r := range records {
		if r.Priority == best && r.Port != 0 {
			hosts = append(hosts, net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port))))
		}
	}
	return hosts, nil
}
